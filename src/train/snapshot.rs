use std::collections::BTreeMap;
use std::sync::Arc;

use backburn_optim::optimizer_record::{RecordedState, read, to_bytes};
use burn::module::ParamGroup;
use burn::optim::{
    DynOptimizer, DynState, ModuleOptimizer, OptimizerRecord, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Bytes, Device, TensorData};
use parking_lot::Mutex;

use super::swap_slot::no_optimizer;

/// Returns an optimizer whose records contain the states of `record` at this moment; it can't step. Burn's learner saves a record
/// during later steps, so the states are read when it is taken. `record` is called twice and must return the same states.
pub(super) fn snapshot(mut record: impl FnMut() -> OptimizerRecord) -> ModuleOptimizer {
    let snapshot = SnapshotOptimizer::default();
    let optimizer = no_optimizer().with_group(ParamGroup::all(), snapshot.clone(), None);
    // The first record determines which states exist and is dropped unread. A record may have to be computed, so the two
    // don't exist at the same time.
    let optimizer = optimizer.load_record(record());
    snapshot.0.lock().unread = Some(record());
    optimizer
}

#[derive(Clone, Default)]
struct SnapshotOptimizer(Arc<Mutex<Contents>>);

#[derive(Default)]
struct Contents {
    unread: Option<OptimizerRecord>,
    /// `None` until they are read, and if that has failed.
    states: Option<BTreeMap<u64, RecordedState>>,
}

impl Contents {
    /// Returns the state of the parameter with this id.
    fn state(&mut self, id: &str) -> Option<&RecordedState> {
        if let Some(record) = self.unread.take() {
            let states = to_bytes(record).map(Bytes::shared).and_then(read);
            self.states = Some(states.unwrap_or_else(|error| panic!("{error}")));
        }
        let states = self.states.as_ref();
        let states = states.expect("an earlier record has failed to read the states");
        states.get(&id.parse().ok()?)
    }
}

impl DynOptimizer for SnapshotOptimizer {
    fn step_dyn(
        &self,
        _rank: usize,
        _learning_rate: f64,
        tensor: BridgeTensor,
        _gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, state)
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, _state: &DynState, sink: &mut StateSink) {
        let mut contents = self.0.lock();
        let Some(state) = contents.state(prefix) else {
            return;
        };
        for tensor in &state.tensors {
            let (name, dtype, shape, _, bytes) = tensor.clone().into_parts().expect("it was read");
            let data = TensorData::from_bytes(bytes, shape, dtype);
            sink.push_tensor(prefix, state.name_in_state(&name), data);
        }
        for (name, scalar) in &state.scalars {
            sink.push_scalar(prefix, state.name_in_state(name), *scalar);
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        _prefix: &str,
        _source: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        Some(DynState::create((), rank))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{AdafactorConfig, AdamWConfig, LionConfig, SgdConfig};
    use burn::tensor::Tensor;
    use burn_pack::Reader;

    use super::*;
    use crate::{FusedConfig, FusedOptimizer, GlobalNormClippingConfig};
    use backburn_optim as optim;
    use backburn_optim::{StateFormat, compact_records};

    /// Returns the bytes of all tensors by name, and the other entries.
    fn contents(record: OptimizerRecord) -> (BTreeMap<String, Vec<u8>>, String) {
        let reader = Reader::from_bytes(record.into_bytes().unwrap()).unwrap();
        let others = format!("{:?} {:?}", reader.scalars(), reader.metadata());
        let tensors = reader.into_tensors().unwrap().into_iter();
        let tensors = tensors.map(|tensor| {
            let (name, _, _, _, bytes) = tensor.into_parts().unwrap();
            (name, bytes.to_vec())
        });
        (tensors.collect(), others)
    }

    fn step(fused: &mut FusedOptimizer<Vec<Linear>>) {
        fused
            .step(0.1, |layers| {
                let x = Tensor::ones([3, 64], &Device::flex().autodiff());
                let x = layers
                    .iter()
                    .fold(x, |x: Tensor<2>, layer| layer.forward(x));
                x.powi_scalar(2).mean()
            })
            .unwrap();
    }

    #[test]
    fn snapshot_optimizer_keeps_record_across_steps() {
        let device = Device::flex().autodiff();
        let lion = ParamGroup::from_predicate("1.weight");
        let in_few_bits = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
        for optimizer in [
            SgdConfig::new().init(),
            AdafactorConfig::new().init(),
            AdamWConfig::new()
                .init()
                .with_group(lion, LionConfig::new().build(), None),
            in_few_bits.init(),
        ] {
            let model = (0..2).map(|_| LinearConfig::new(64, 64).init(&device));
            let config = FusedConfig::new();
            let config = config.with_clipping(Some(GlobalNormClippingConfig::Lagged(0.1)));
            let mut fused = FusedOptimizer::new(model.collect::<Vec<Linear>>(), optimizer)
                .unwrap()
                .with_config(config)
                .unwrap();
            for _ in 0..2 {
                step(&mut fused);
                let expected = contents(fused.to_record());
                let compact = compact_records(|| contents(fused.to_record()));
                let [snapshot, compact_snapshot] = [
                    snapshot(|| fused.to_record()),
                    compact_records(|| snapshot(|| fused.to_record())),
                ];
                step(&mut fused);
                assert!(contents(snapshot.to_record()) == expected);
                assert!(contents(snapshot.to_record()) == expected);
                assert!(contents(compact_snapshot.to_record()) == compact);
            }
        }
    }
}
