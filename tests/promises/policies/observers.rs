//! Observers receive the events of a step.

use std::sync::{Arc, Mutex};

use crate::common::*;

/// An observer that the crate does not have.
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
