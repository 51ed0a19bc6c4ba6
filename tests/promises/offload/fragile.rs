//! An optimizer whose states fail in their transfer to or from the host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

static ALONE: Mutex<()> = Mutex::new(());

/// Runs one test at a time, because the tests share the counters.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of writes and of reads of a state until one fails.
static WRITES: AtomicUsize = AtomicUsize::new(usize::MAX);
static READS: AtomicUsize = AtomicUsize::new(usize::MAX);

fn count(calls: &AtomicUsize) {
    let left = calls.load(Ordering::SeqCst);
    if left != usize::MAX {
        assert_ne!(left, 0, "the state is stuck");
        calls.store(left - 1, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Fragile;

#[derive(Clone)]
struct Velocity<const D: usize>(Tensor<D>);

impl<const D: usize> RecordState for Velocity<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        count(&WRITES);
        sink.push_tensor(prefix, "velocity", self.0.to_data());
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        count(&READS);
        let data: TensorData = source.take_tensor(prefix, "velocity")?;
        Some(Self(Tensor::from_data(data, device)))
    }
}

impl Optimizer for Fragile {
    type State<const D: usize> = Velocity<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Velocity<D>>,
    ) -> (Tensor<D>, Option<Velocity<D>>) {
        let velocity = match state {
            Some(Velocity(velocity)) => velocity * 0.9 + gradient,
            None => gradient,
        };
        let tensor = tensor - velocity.clone() * rate;
        (tensor, Some(Velocity(velocity)))
    }

    fn to_device<const D: usize>(state: Velocity<D>, device: &Device) -> Velocity<D> {
        Velocity(state.0.to_device(device))
    }
}

#[test]
fn state_transfer_that_panics_loses_no_weight_or_state() {
    let _alone = alone();
    // It stands in for a device with memory of its own.
    let [_, device] = cpus();
    let tokens = batches(&device);
    for calls in [&WRITES, &READS] {
        for failing in 0..4 {
            let model = Network::init(&Device::flex().autodiff());
            let config = OffloadConfig::new(Offload::States).with_min_elements(10);
            let mut fused = FusedOptimizer::new(model, Fragile.into())
                .unwrap()
                .with_config_on(FusedConfig::offload(config), &device)
                .unwrap();
            fused
                .step(RATE, |model| model.loss(tokens[0].clone()))
                .unwrap();
            let states = fused.to_record().len();
            calls.store(failing, Ordering::SeqCst);
            let step = || {
                fused
                    .step(RATE, |model| model.loss(tokens[1].clone()))
                    .unwrap()
            };
            assert_says(&panic_of(step), "the state is stuck");
            calls.store(usize::MAX, Ordering::SeqCst);

            for (path, values) in weights(&fused.model()) {
                assert!(values.iter::<f32>().all(f32::is_finite), "`{path}`");
            }
            assert_eq!(fused.to_record().len(), states);
            fused
                .step(RATE, |model| model.loss(tokens[2].clone()))
                .unwrap();
        }
    }
}

/// The states, the average and the norm of the last step stay as they were.
#[test]
fn record_load_that_panics_changes_nothing() {
    let _alone = alone();
    let [_, device] = cpus();
    let tokens = batches(&device);
    let initial = Network::init(&Device::flex().autodiff());
    let offload = OffloadConfig::new(Offload::States).with_min_elements(10);
    let config = FusedConfig::lagged(1e-3)
        .with_offload(Some(offload))
        .with_averaging(Some(WeightAveragingConfig::new().with_decay(Some(0.5))));
    let train = |steps: usize| {
        let mut fused = FusedOptimizer::new(initial.clone(), Fragile.into())
            .unwrap()
            .with_config_on(config.clone(), &device)
            .unwrap();
        for tokens in &tokens[..steps] {
            fused
                .step(RATE, |model| model.loss(tokens.clone()))
                .unwrap();
        }
        fused
    };
    let expected = train(3);
    for calls in [&WRITES, &READS] {
        for failing in 0.. {
            let (mut fused, record) = (train(2), train(1).to_record());
            calls.store(failing, Ordering::SeqCst);
            let loaded = catch_unwind(AssertUnwindSafe(|| fused.load_record(record)));
            calls.store(usize::MAX, Ordering::SeqCst);
            if matches!(loaded, Ok(Ok(()))) {
                assert!(failing > 1, "no call has failed");
                break;
            }
            fused
                .step(RATE, |model| model.loss(tokens[2].clone()))
                .unwrap();
            let clipping = [&fused, &expected].map(|it| it.last_step().clipping);
            assert_eq!(clipping[0], clipping[1]);
            assert_equal_weights(&expected.model(), &fused.model());
            assert_equal_weights(&expected.averaged(), &fused.averaged());
        }
    }
}
