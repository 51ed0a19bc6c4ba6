//! Each event is logged once.

use std::sync::{Mutex, Once};

use backburn::train::{FusedLearner, LaunchFused};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::constant::ConstantLr;
use burn::train::{RegressionOutput, SupervisedTraining};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::common::*;

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

/// Runs one test at a time, because the tests share the logger.
static ALONE: Mutex<()> = Mutex::new(());

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| log::set_logger(&TOLD).unwrap());
    log::set_max_level(LevelFilter::Debug);
    told();
}

fn told() -> Vec<(Level, String)> {
    std::mem::take(&mut TOLD.0.lock().unwrap())
}

#[test]
fn attaching_copies_and_missing_gradients_are_logged_once() {
    let _alone = ALONE.lock();
    listen();
    let device = Device::flex().autodiff();
    let model = linears(3, 2, &device).freeze_group(ParamGroup::from_predicate("2."));
    let x = Tensor::<2>::ones([3, 2], &device);

    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    let attached = told();
    assert_eq!(attached.len(), 1);
    assert_eq!(attached[0].0, Level::Info);
    assert_eq!(attached[0].1, fused.to_string());
    for words in [
        "4 parameters stepped in the backward pass, 0 after it",
        "4 of 6 parameters are trained (12 of 18 elements)",
    ] {
        assert_says(&attached[0].1, words);
    }

    let mut step = || {
        let loss = fused
            .step(0.1, |model| model[0].forward(x.clone()).mean())
            .unwrap();
        (loss, fused.model(), told())
    };
    let (_, _, mut missing) = step();
    missing.sort();
    let expected = ["1.bias", "1.weight"].map(|path| {
        let text = format!("parameter `{path}` received no gradient in this pass");
        (Level::Warn, text)
    });
    assert_eq!(missing, expected);

    let (_, kept, nothing) = step();
    assert_eq!(nothing, []);
    let (_, _, copied) = step();
    assert_eq!(copied.len(), 2);
    assert!(copied.iter().all(|(level, _)| *level == Level::Debug));
    let is_weight = |(_, text): &(Level, String)| text.contains("`0.weight` is copied");
    assert!(copied.iter().any(is_weight));
    drop(kept);
    let (_, _, nothing) = step();
    assert_eq!(nothing, []);
}

#[test]
fn unused_input_of_block_is_logged_once() {
    let _alone = ALONE.lock();
    listen();
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new(linears(2, 2, &device), SgdConfig::new().init()).unwrap();
    told();
    let x = Tensor::<2>::ones([3, 2], &device);
    for _ in 0..3 {
        fused
            .step(0.1, |model| {
                let unused = model[0].forward(x.clone());
                let ignoring = |layer: &Linear, (x, _): (Tensor<2>, Tensor<2>)| layer.forward(x);
                gradient_checkpointing(&model[1], (x.clone(), unused), ignoring).mean()
            })
            .unwrap();
    }
    let told = told();
    let [(Level::Warn, text)] = &told[..] else {
        panic!("{told:?}")
    };
    assert_says(&text, "block `1`");
    assert_says(&text, "input 1");
    assert_says(&text, "detach it");
}

#[derive(Module, Debug)]
struct Model {
    linear: Linear,
}

impl Model {
    fn output(&self, x: Tensor<2>) -> RegressionOutput {
        let output = self.linear.forward(x.clone());
        RegressionOutput::new(output.clone().mean(), output, x)
    }
}

impl_train_step!(Model, Tensor<2>);
impl_inference_step!(Model, Tensor<2>);

struct Ones;

impl Batcher<u8, Tensor<2>> for Ones {
    fn batch(&self, items: Vec<u8>, device: &Device) -> Tensor<2> {
        Tensor::ones([items.len(), 2], device)
    }
}

#[test]
fn learner_logs_no_copy_of_weights() {
    let _alone = ALONE.lock();
    listen();
    let loader = || {
        let items = InMemDataset::new(vec![0; 6]);
        DataLoaderBuilder::new(Ones).batch_size(2).build(items)
    };
    let model = Model {
        linear: LinearConfig::new(2, 2).init(&Device::flex().autodiff()),
    };
    let learner = FusedLearner::new(model, SgdConfig::new().init(), ConstantLr::new(0.1));
    let folder = tempfile::tempdir().unwrap();
    SupervisedTraining::new(folder.path(), loader(), loader())
        .with_application_logger(None)
        .gradient_checkpointing() // Has no effect, and the log says so.
        .num_epochs(3)
        .launch_fused(learner);

    // Three epochs with validation log only the start, and no copy.
    let told = told();
    let [device, attached] = &told[..] else {
        panic!("{told:?}");
    };
    assert_says(&device.1, "alone, without Burn's gradient checkpointing");
    assert_says(&attached.1, "FusedOptimizer: 2 parameters");
}
