//! Observers receive the events of a step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::normed::Normed;
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
    let (log, sgd) = (EventLog::default(), SgdConfig::new().init());
    let mut fused = FusedOptimizer::new(layers, sgd)
        .unwrap()
        .with_observer(log.clone());
    let x = Tensor::<2>::ones([1, 2], &device);
    fused
        .step(0.1, |layers| {
            layers.iter().fold(x, |x, layer| layer.forward(x)).mean()
        })
        .unwrap();
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

/// An observer that panics at an event and at the end of a step, while it is armed.
#[derive(Clone)]
struct Panics {
    at: usize,
    is_armed: Arc<AtomicBool>,
}

const EVENTS: usize = 11;

impl StepObserver for Panics {
    fn observe(&self, event: StepEvent<'_>) {
        let index = match event {
            StepEvent::Forward => 0,
            StepEvent::Read { .. } => 1,
            StepEvent::BlockForward { .. } => 2,
            StepEvent::BlockRecompute { .. } => 3,
            StepEvent::BlockRecomputed { .. } => 4,
            StepEvent::BlockBackward { .. } => 5,
            StepEvent::Backward => 6,
            StepEvent::GradientReady { .. } => 7,
            StepEvent::Updating { .. } => 8,
            StepEvent::Updated { .. } => 9,
            StepEvent::End => EVENTS - 1,
            _ => return,
        };
        let panics = index == self.at || index == EVENTS - 1;
        assert!(
            !(panics && self.is_armed.load(Ordering::Relaxed)),
            "event {index} fails"
        );
    }
}

#[test]
fn observer_that_panics_at_end_leaves_step_complete() {
    let device = Device::flex().autodiff();
    let initial = Normed::init(2, 2, &device);
    let loss = |model: &Normed, x: &Tensor<2>| model.forward(x.clone()).square().mean();
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
            let model = copy(&initial, || Normed::init(2, 2, &device));
            let fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
            let mut fused = fused.with_config(config.clone()).unwrap();
            if panics {
                fused = fused.with_observer(Panics {
                    at: EVENTS - 1,
                    is_armed: Arc::new(true.into()),
                });
            }
            for (index, x) in xs.iter().enumerate() {
                // Each step has two micro-batches.
                let mut run = || match index % 2 {
                    0 => drop(fused.accumulate(|model| loss(model, x)).unwrap()),
                    _ => drop(fused.step_repeatable(0.1, |model| loss(model, x)).unwrap()),
                };
                match panics {
                    true => assert_says(&panic_of(run), "event 10 fails"),
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

/// Stock Burn trains with the gradients that the failed step has applied.
#[test]
fn training_after_observer_panic_matches_stock() {
    let device = flex();
    let initial = Stack::init(2, 3, &device);
    let xs = randoms(4, [2, 3], &device);
    for at in 0..EVENTS {
        let is_armed = Arc::<AtomicBool>::default();
        let observer = Panics {
            at,
            is_armed: is_armed.clone(),
        };
        let start = || copy(&initial, || Stack::init(2, 3, &device));
        let (mut stock, mut adam) = (start(), AdamWConfig::new().init());
        let fused = FusedOptimizer::new(start(), AdamWConfig::new().init()).unwrap();
        let mut fused = fused.with_observer(observer);
        for (index, x) in xs.iter().enumerate() {
            let before = weights(&fused.model());
            let mut step = || fused.step(0.1, |model| model.loss_in_blocks(x.clone()));
            match index {
                1 => {
                    is_armed.store(true, Ordering::Relaxed);
                    assert_says(&panic_of(step), &format!("event {at} fails"));
                    is_armed.store(false, Ordering::Relaxed);
                }
                _ => drop(step().unwrap()),
            }
            let after = weights(&fused.model());
            let is_kept = |path: String| {
                let mut both = before.iter().zip(&after);
                both.any(|(before, after)| before.0 == path && before.1 == after.1)
            };
            let has_failed = index == 1;
            let gradients = stock.loss(x.clone()).backward();
            let mut gradients = GradientsParams::from_grads(gradients, &stock);
            for (index, layer) in stock.layers.iter().enumerate() {
                if has_failed && is_kept(format!("layers.{index}.weight")) {
                    gradients.remove::<2>(layer.weight.id);
                }
                if has_failed && is_kept(format!("layers.{index}.bias")) {
                    gradients.remove::<1>(layer.bias.as_ref().unwrap().id);
                }
            }
            stock = adam.step(0.1, stock, gradients);
        }
        assert_equal_weights(&stock, &fused.model());
    }
}
