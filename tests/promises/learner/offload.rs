//! A learner whose states, updates or weights wait in host memory writes what stock writes.
#![allow(deprecated)] // `ndarray`: Burn 0.22 still ships it, and it stands in for a device with memory of its own.

use std::path::Path;

use backburn::train::{FusedLearner, LaunchFused};
use burn::train::{ExecutionStrategy, LearningResult};

use super::{Regression, Run, files};
use crate::common::*;

const MODES: [Offload; 3] = [
    Offload::States,
    Offload::Updates,
    Offload::Weights(OffloadedBlocks::All),
];

fn there() -> Device {
    Device::ndarray().autodiff()
}

/// Trains a model that is on the host.
fn offloaded(
    run: Run,
    offload: Offload,
    model: Regression,
    folder: &Path,
) -> LearningResult<Regression> {
    let config = OffloadConfig::new(offload).with_min_elements(2);
    let training = run.training(folder);
    let learner = FusedLearner::new(model, run.optimizer, run.scheduler);
    let learner = learner
        .with_training_strategy(ExecutionStrategy::SingleDevice(there()))
        .unwrap()
        .with_config_ok(FusedConfig::offload(config));
    training.launch_fused(learner)
}

fn runs(epochs: usize, resume: Option<usize>) -> [Run; 2] {
    [(); 2].map(|()| Run {
        resume,
        ..Run::new(epochs)
    })
}

#[test]
fn an_offloaded_training_writes_what_stock_writes() {
    let initial = Regression::init();
    for mode in MODES {
        let [stock_folder, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [stock_run, run] = runs(3, None);
        let stock = copy(&initial, || Regression::init_on(&there()));
        let stock = stock_run.stock(stock, stock_folder.path());
        let fused = offloaded(run, mode, copy(&initial, Regression::init), folder.path());
        assert!(fused.error.is_none(), "{:?}", fused.error);
        assert_equal_weights(&stock.model, &fused.model);
        assert_eq!(files(stock_folder.path()), files(folder.path()), "{mode:?}");
    }
}

#[test]
fn checkpoints_go_both_ways() {
    let initial = Regression::init();
    let there = || copy(&initial, || Regression::init_on(&there()));
    let here = || copy(&initial, Regression::init);
    let whole_folder = tempfile::tempdir().unwrap();
    let whole = Run::new(4).stock(there(), whole_folder.path());
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        offloaded(Run::new(2), mode, here(), folder.path());
        let [stock_run, _] = runs(4, Some(2));
        let resumed = stock_run.stock(Regression::init_on(&there().devices()[0]), folder.path());
        assert_equal_weights(&whole.model, &resumed.model);

        let folder = tempfile::tempdir().unwrap();
        Run::new(2).stock(there(), folder.path());
        let [_, run] = runs(4, Some(2));
        let resumed = offloaded(run, mode, Regression::init(), folder.path());
        assert_equal_weights(&whole.model, &resumed.model);
    }
}
