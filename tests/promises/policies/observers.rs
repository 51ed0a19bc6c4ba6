//! Observers receive the events of a step.

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
