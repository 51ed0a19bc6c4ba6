//! Observers receive the events of a step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;

/// An observer of a user.
#[derive(Clone, Default)]
struct EventLog(Arc<Mutex<Vec<String>>>);

impl StepObserver for EventLog {
    fn observe(&self, event: StepEvent<'_>) {
        let line = match event {
            StepEvent::Forward => "forward".to_string(),
            StepEvent::Read { path } => format!("read {path}"),
            StepEvent::Backward => "backward".to_string(),
            StepEvent::GradientReady { path, bytes } => format!("gradient {path}, {bytes} bytes"),
            StepEvent::Updated { path, copied, .. } => format!("updated {path}, copied {copied:?}"),
            StepEvent::End => "end".to_string(),
            _ => return,
        };
        self.0.lock().unwrap().push(line);
    }
}

#[test]
fn observer_receives_events_of_step_in_order() {
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(2, 2).with_bias(false).init(&device);
    let layers: Vec<Linear> = (0..2).map(layer).collect();
    let log = EventLog::default();
    let mut fused =
        FusedOptimizer::new_ok(layers, SgdConfig::new().init()).with_observer(log.clone());
    let x = Tensor::<2>::ones([1, 2], &device);
    fused.step_ok(0.1, |layers| {
        layers.iter().fold(x, |x, layer| layer.forward(x)).mean()
    });
    let expected = [
        "forward",
        "read 0.weight",
        "read 1.weight",
        "backward",
        "gradient 1.weight, 16 bytes",
        "updated 1.weight, copied Some(false)",
        "gradient 0.weight, 16 bytes",
        "updated 0.weight, copied Some(false)",
        "end",
    ];
    assert_eq!(*log.0.lock().unwrap(), expected);
}

#[test]
fn observer_that_panics_at_any_event_leaves_training_usable() {
    struct Panics(usize);

    impl StepObserver for Panics {
        fn observe(&self, event: StepEvent<'_>) {
            let at = match event {
                StepEvent::Forward => 0,
                StepEvent::Read { .. } => 1,
                StepEvent::Backward => 2,
                StepEvent::GradientReady { .. } => 3,
                StepEvent::Updated { .. } => 4,
                // Also after another event has failed the step.
                StepEvent::End => panic!("the observer ends"),
                _ => return,
            };
            assert!(at != self.0, "the observer fails");
        }
    }

    let device = Device::flex().autodiff();
    let x = Tensor::<2>::ones([1, 2], &device);
    for at in 0..6 {
        let model = LinearConfig::new(2, 2).init(&device);
        let fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
        let mut fused = fused.with_observer(Panics(at));
        let before = fused.model().weight.val().into_data();
        let message = panic_of(|| {
            let step = fused.step(0.1, |model| model.forward(x.clone()).mean());
            panic!("{}", step.unwrap_err())
        });
        let expected = ["fails", "ends"][usize::from(at == 5)];
        assert!(message.contains(expected), "{at}: {message}");
        let is_updated = fused.model().weight.val().into_data() != before;
        // The event of the bias precedes the update of the weight.
        assert_eq!(is_updated, at == 5, "{at}");
    }
}

/// A layer with running statistics.
#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Normed {
    fn init(device: &Device) -> Self {
        Self {
            linear: LinearConfig::new(2, 2).init(device),
            norm: BatchNormConfig::new(2).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.norm.forward(self.linear.forward(x)).square().mean()
    }
}

#[test]
fn observer_that_panics_at_end_leaves_step_complete() {
    struct PanicsAtEnd;

    impl StepObserver for PanicsAtEnd {
        fn observe(&self, event: StepEvent<'_>) {
            if let StepEvent::End = event {
                panic!("the observer ends")
            }
        }
    }

    let device = Device::flex().autodiff();
    let initial = Normed::init(&device);
    let xs = randoms(6, [3, 2], &device);
    let scaling = LossScalingConfig::new().with_initial_scale(4.0);
    let in_buffer = GlobalNormClippingConfig::ExactInBuffer(0.01);
    for config in [
        FusedConfig::new(),
        FusedConfig::lagged(0.01),
        FusedConfig::exact(0.01),
        FusedConfig::clipping(in_buffer),
        FusedConfig::scaling(scaling.with_growth_interval(Some(2))),
    ] {
        let train = |panics: bool| {
            let model = copy(&initial, || Normed::init(&device));
            let fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
            let mut fused = fused.with_config_ok(config.clone());
            if panics {
                fused = fused.with_observer(PanicsAtEnd);
            }
            for (index, x) in xs.iter().enumerate() {
                // Each step has two micro-batches.
                let mut run = || match index % 2 {
                    0 => drop(fused.accumulate_ok(|model| model.loss(x.clone()))),
                    _ => drop(fused.step_repeatable_ok(0.1, |model| model.loss(x.clone()))),
                };
                match panics {
                    true => assert_says(&panic_of(run), "the observer ends"),
                    false => run(),
                }
            }
            (fused.model(), fused.last_step().clone())
        };
        let [(expected, report), (found, found_report)] = [false, true].map(train);
        assert_equal_weights(&expected, &found);
        assert_eq!(report, found_report);
    }
}

/// An observer that panics at this event in one step.
#[derive(Clone)]
struct PanicsOnce {
    at: &'static str,
    is_armed: Arc<AtomicBool>,
}

impl StepObserver for PanicsOnce {
    fn observe(&self, event: StepEvent<'_>) {
        let name = match event {
            StepEvent::Forward => "forward",
            StepEvent::Read { .. } => "read",
            StepEvent::BlockForward { .. } => "block forward",
            StepEvent::BlockRecompute { .. } => "block recompute",
            StepEvent::BlockRecomputed { .. } => "block recomputed",
            StepEvent::BlockBackward { .. } => "block backward",
            StepEvent::Backward => "backward",
            StepEvent::GradientReady { .. } => "gradient",
            StepEvent::Updating { .. } => "updating",
            StepEvent::Updated { .. } => "updated",
            StepEvent::End => "end",
            _ => return,
        };
        let panics = name == self.at && self.is_armed.swap(false, Ordering::Relaxed);
        assert!(!panics, "the observer fails at {name}");
    }
}

/// Stock Burn trains with the gradients that the failed step has applied.
#[test]
fn training_after_observer_panic_matches_stock() {
    let device = flex();
    let initial = Stack::init(2, 3, &device);
    let xs = randoms(4, [2, 3], &device);
    for at in [
        "forward",
        "read",
        "block forward",
        "block recompute",
        "block recomputed",
        "block backward",
        "backward",
        "gradient",
        "updating",
        "updated",
        "end",
    ] {
        let is_armed = Arc::<AtomicBool>::default();
        let observer = PanicsOnce {
            at,
            is_armed: is_armed.clone(),
        };
        let start = || copy(&initial, || Stack::init(2, 3, &device));
        let (mut stock, mut adam) = (start(), AdamWConfig::new().init());
        let fused = FusedOptimizer::new_ok(start(), AdamWConfig::new().init());
        let mut fused = fused.with_observer(observer);
        for (index, x) in xs.iter().enumerate() {
            let before = weights(&fused.model());
            let mut step = || fused.step(0.1, |model| model.loss_in_blocks(x.clone()));
            match index {
                1 => {
                    is_armed.store(true, Ordering::Relaxed);
                    assert_says(&panic_of(step), at);
                }
                _ => drop(step().unwrap()),
            }
            let after = weights(&fused.model());
            let is_kept = |path: String| {
                let mut both = before.iter().zip(&after);
                both.any(|(before, after)| before.0 == path && before.1 == after.1)
            };
            let gradients = stock.loss(x.clone()).backward();
            let mut gradients = GradientsParams::from_grads(gradients, &stock);
            for (index, layer) in stock.layers.iter().enumerate() {
                if is_kept(format!("layers.{index}.weight")) {
                    gradients.remove::<2>(layer.weight.id);
                }
                if is_kept(format!("layers.{index}.bias")) {
                    gradients.remove::<1>(layer.bias.as_ref().unwrap().id);
                }
            }
            stock = adam.step(0.1, stock, gradients);
        }
        assert_equal_weights(&stock, &fused.model());
    }
}
