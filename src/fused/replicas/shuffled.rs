//! Tests of two ranks that each own a part of the model, in shuffled schedules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use parking_lot::Mutex;

use crate::threads::schedule;
use crate::{
    FusedConfig, FusedReplicas, GlobalNormClippingConfig, GradientFlow, GradientHook,
    HookedParameter, Offload, OffloadConfig, Ownership, Sharding,
};

type Model = Vec<Linear>;

/// The replicas of a step, and their values before it.
type Begun = Arc<Mutex<(Vec<Model>, Vec<TensorData>)>>;

fn values(model: &Model) -> Vec<TensorData> {
    let layers = model.iter();
    layers.map(|layer| layer.weight.val().into_data()).collect()
}

/// A hook that reads all replicas for inference. Each read returns the value from before the step, or panics with the
/// path.
struct Reading(Begun);

impl GradientHook for Reading {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let (replicas, before) = self.0.lock().clone();
        for (layer, before) in replicas
            .iter()
            .flat_map(|replica| replica.iter().zip(&before))
        {
            let read = || layer.valid().weight.val().into_data();
            match catch_unwind(AssertUnwindSafe(read)) {
                Ok(found) => assert_eq!(found, *before),
                Err(panic) => {
                    let message = panic.downcast_ref::<String>().unwrap();
                    assert!(message.contains("was sent to the other ranks"), "{message}");
                }
            }
        }
        GradientFlow::Continue(gradient)
    }
}

/// Returns the weights after some steps, in the schedule of this number.
fn trained(model: Model, config: FusedConfig, schedule: Option<u64>) -> Vec<TensorData> {
    let _shuffled = schedule.map(schedule::shuffle);
    #[allow(deprecated)] // Burn 0.22 still ships ndarray.
    let devices = [Device::ndarray(), Device::ndarray()];
    let begun = Begun::default();
    let optimizer = AdamWConfig::new().init();
    let mut fused = FusedReplicas::new_with_config(model, optimizer, devices, config)
        .unwrap()
        .with_hook(ParamGroup::all(), Reading(begun.clone()));
    for step in 0..3 {
        *begun.lock() = (Vec::new(), values(&fused.model()));
        let batches = fused.devices().iter().enumerate().map(|(rank, device)| {
            let x = Tensor::<2>::ones([2, 6], device);
            x * (step + 2 * rank + 1) as f32
        });
        let batches: Vec<_> = batches.collect();
        let begun = begun.clone();
        let loss = move |model: &Model, x: Tensor<2>| {
            begun.lock().0.push(model.clone());
            let layers = model.iter();
            let x = layers.fold(x, |x, layer| layer.forward(x).tanh());
            x.powi_scalar(2).mean()
        };
        if step == 1 {
            fused.accumulate(batches.clone(), loss.clone()).unwrap();
        }
        fused.step_repeatable(0.1, batches, loss).unwrap();
    }
    values(&fused.into_parts().0)
}

#[test]
fn replicas_weights_are_equal_under_any_thread_schedule() {
    let base = FusedConfig::new()
        .with_ownership(Ownership::BySize)
        .with_max_bytes_in_flight(Some(0));
    let clipping = Some(GlobalNormClippingConfig::Exact(0.1));
    let offload = OffloadConfig::new(Offload::Updates).with_min_elements(1);
    let configs = [
        base.clone(),
        base.clone().with_sharding(Sharding::Full),
        base.clone().with_clipping(clipping),
        base.with_offload(Some(offload)),
    ];
    let layer = |_| LinearConfig::new(6, 6).init(&Device::flex().autodiff());
    let model: Model = (0..4).map(layer).collect();
    for config in configs {
        let expected = trained(model.clone(), config.clone(), None);
        for seed in 0..15 {
            let (sender, done) = channel();
            let (model, config) = (model.clone(), config.clone());
            thread::spawn(move || sender.send(trained(model, config, Some(seed))));
            let found = done.recv_timeout(Duration::from_secs(60));
            let found = found.unwrap_or_else(|error| panic!("schedule {seed}: {error}"));
            assert_eq!(found, expected, "schedule {seed}");
        }
    }
}
