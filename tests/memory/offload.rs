//! Offloaded tensors are not on the device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::optim::{LearningRate, RecordState, StateSink, StateSource};

use super::*;

pub const MODES: [Offload; 4] = [
    Offload::States,
    Offload::Updates,
    Offload::Weights(OffloadedBlocks::All),
    Offload::Weights(OffloadedBlocks::Fraction(0.5)),
];

/// A weight that is a view of one element, and would be too long for the host with its states and gradients.
#[test]
fn host_without_bytes_of_states_and_gradients_is_refused() {
    alone!();
    let device = Device::flex().autodiff();
    let elements = 1_usize << 40;
    for (offload, bytes) in [
        (Offload::States, 8 * elements),
        (Offload::Updates, 20 * elements),
    ] {
        let mut model = LinearConfig::new(2, 2).with_bias(false).init(&device);
        let long = Tensor::<2>::ones([1, 1], &device).expand([elements as i64, 1]);
        model.weight = Param::initialized(model.weight.id, long.require_grad());
        let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
        let config = FusedConfig::offload(offload_from_flex(offload));
        let error = fused.with_config_on(config, &device).unwrap_err();
        let text = error.to_string();
        let needs = text.split("`FusedConfig::offload` needs ").nth(1);
        let needs = needs.and_then(|rest| rest.split(' ').next());
        let needs: usize = needs.and_then(|bytes| bytes.parse().ok()).expect(&text);
        // The bytes of a state in addition to its tensors.
        assert!((bytes..bytes + 10_000).contains(&needs), "{text}");
    }
}

/// The current and the largest number of states that are not records, and `true` if the next update panics.
static STATES: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static PANICS: AtomicBool = AtomicBool::new(false);

/// Counted as long as it is there.
struct Counted;

impl Counted {
    fn new() -> Self {
        let states = STATES.fetch_add(1, Ordering::SeqCst) + 1;
        MOST.fetch_max(states, Ordering::SeqCst);
        Self
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        STATES.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct CountedSgd;

#[derive(Clone)]
struct Velocity<const D: usize>(Tensor<D>, Counted);

impl<const D: usize> RecordState for Velocity<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        sink.push_tensor(prefix, "velocity", self.0.to_data());
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = source.take_tensor(prefix, "velocity")?;
        Some(Self(Tensor::from_data(velocity, device), Counted::new()))
    }
}

impl Optimizer for CountedSgd {
    type State<const D: usize> = Velocity<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Velocity<D>>,
    ) -> (Tensor<D>, Option<Velocity<D>>) {
        assert!(!PANICS.swap(false, Ordering::SeqCst), "in the optimizer");
        let (velocity, counted) = match state {
            Some(Velocity(velocity, counted)) => (velocity * 0.9 + gradient, counted),
            None => (gradient, Counted::new()),
        };
        let tensor = tensor - velocity.clone() * rate;
        (tensor, Some(Velocity(velocity, counted)))
    }

    fn to_device<const D: usize>(state: Velocity<D>, device: &Device) -> Velocity<D> {
        Velocity(state.0.to_device(device), state.1)
    }
}

/// For any order of updates, and after a failed step.
#[test]
fn few_states_are_on_device_and_none_between_steps() {
    alone!();
    let device = other().inner();
    let x = Tensor::<2>::ones([3, 4], &device.clone().autodiff());
    for (limit, at_most) in [(None, 3), (Some(0), 1)] {
        let config = FusedConfig::offload(offload_from(&device, Offload::States));
        let config = config.with_max_bytes_in_flight(limit);
        let model = linears(4, 4, &self::device());
        let mut fused = FusedOptimizer::new(model, CountedSgd.into()).unwrap();
        fused = fused.with_config_on(config, &device).unwrap();
        MOST.store(0, Ordering::SeqCst);
        for step in 0..60 {
            let fails = step % 10 == 9;
            PANICS.store(fails, Ordering::SeqCst);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                fused
                    .step(1e-3, |model| {
                        let mut model = model.clone();
                        model.rotate_left(step % 3);
                        model.truncate(4 - step % 2);
                        loss_of_layers(&model, true, x.clone())
                    })
                    .unwrap();
            }));
            assert_eq!(ended.is_err(), fails);
            assert_eq!(STATES.load(Ordering::SeqCst), 0, "after step {step}");
        }
        let most = MOST.load(Ordering::SeqCst);
        // Their number depends on the threads.
        assert!((1..=at_most).contains(&most), "{most} with {limit:?}");
    }
}

/// A model of 12 blocks is created on the host. The device holds few blocks at a time.
#[cfg(feature = "wgpu")]
#[test]
fn weights_on_host_are_not_on_device_together() {
    use std::sync::Arc;

    alone!();
    let (depth, width) = (12, 256);
    let block = 4 * width * width;
    let device = Device::wgpu(Default::default());
    let x = Tensor::<2>::ones([4, width], &device.clone().autodiff());
    for (mode, blocks) in [
        (Offload::Weights(OffloadedBlocks::All), 5),
        (Offload::Weights(OffloadedBlocks::Fraction(0.5)), 11),
        (Offload::Updates, 16),
    ] {
        let model = linears(depth, width, &self::device());
        let optimizer = AdamConfig::new().init();
        let config = FusedConfig::offload(OffloadConfig::new(mode));
        let estimate = MemoryEstimate::new_with_config(&model, &optimizer, &config);
        // The peak of the bytes in use at a gradient.
        let most: Arc<AtomicUsize> = Arc::default();
        let (measured, pools) = (most.clone(), device.clone());
        let measures = hook(move |_| {
            let usage = pools.memory_pool_usage().expect("the device has pools");
            measured.fetch_max(usage.bytes_in_use as usize, Ordering::Relaxed);
            Answer::Use
        });
        let mut fused = FusedOptimizer::new(model, optimizer)
            .unwrap()
            .with_hook(ParamGroup::all(), measures)
            .with_config_on(config, &device)
            .unwrap();
        for _ in 0..4 {
            fused
                .step(1e-3, |model| loss_of_layers(model, true, x.clone()))
                .unwrap();
        }
        let most = most.load(Ordering::Relaxed);
        assert!(
            most <= blocks * block,
            "{mode:?}: {:.2} blocks",
            most as f64 / block as f64
        );
        assert!(most >= estimate.device, "{mode:?}: {most} of {estimate}");
        let two_blocks = match mode {
            Offload::Weights(_) => 2 * block,
            _ => 0,
        };
        let expected = estimate.device + estimate.transfer + two_blocks;
        // The activations, and the rounding of allocations on the device.
        assert!(most <= expected + block, "{mode:?}: {most} of {estimate}");
    }
}
