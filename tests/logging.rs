//! What happens is told through `log`, once.
//!
//! A process of its own: it installs a logger.

use std::sync::Mutex;

use backburn::FusedOptimizer;
use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use log::{Level, LevelFilter, Log, Metadata, Record};

struct Told(Mutex<Vec<(Level, String)>>);

impl Log for Told {
    fn enabled(&self, _metadata: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        if record.target().starts_with("backburn") {
            let told = (record.level(), record.args().to_string());
            self.0.lock().unwrap().push(told);
        }
    }

    fn flush(&self) {}
}

static TOLD: Told = Told(Mutex::new(Vec::new()));

fn told() -> Vec<(Level, String)> {
    std::mem::take(&mut TOLD.0.lock().unwrap())
}

#[test]
fn attaching_copies_and_missing_gradients_are_told_once() {
    log::set_logger(&TOLD).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let device = Device::flex().autodiff();
    let linear = || LinearConfig::new(2, 2).init(&device);
    let model: Vec<Linear> = vec![linear(), linear(), linear()];
    let model = model.freeze_group(ParamGroup::from_predicate("2."));
    let x = Tensor::<2>::ones([3, 2], &device);

    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    let attached = told();
    assert_eq!(attached.len(), 1);
    assert_eq!(attached[0].0, Level::Info);
    assert_eq!(attached[0].1, fused.to_string());
    assert!(attached[0].1.contains("4 parameters (12 elements)"));
    assert!(attached[0].1.contains("0 left to its end, 2 frozen"));

    let mut step = || {
        let loss = fused.step(0.1, |model| model[0].forward(x.clone()).mean());
        (loss, fused.model(), told())
    };
    let (_, _, mut missing) = step();
    missing.sort_by(|left, right| left.1.cmp(&right.1));
    let missing: Vec<_> = missing
        .iter()
        .map(|(level, text)| (*level, &text[..]))
        .collect();
    assert_eq!(
        missing,
        [
            (
                Level::Warn,
                "parameter `1.bias` got no gradient in this pass"
            ),
            (
                Level::Warn,
                "parameter `1.weight` got no gradient in this pass"
            ),
        ]
    );

    let (_, kept, nothing) = step();
    assert_eq!(nothing, []);
    let (_, _, copied) = step();
    assert_eq!(copied.len(), 2);
    assert!(copied.iter().all(|(level, _)| *level == Level::Debug));
    assert!(
        copied
            .iter()
            .any(|(_, text)| text.contains("`0.weight` is copied"))
    );
    drop(kept);
    let (_, _, nothing) = step();
    assert_eq!(nothing, []);
}
