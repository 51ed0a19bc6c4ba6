//! Saving and loading a training in a folder are atomic.

mod damaged;
mod killed;
mod resumed;
mod stray;
mod trained_only;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::common::*;

/// A small model with fast steps: each weight decreases by its momentum.
#[derive(Module, Debug)]
struct Small {
    weight: Param<Tensor<2>>,
}

impl Small {
    fn init() -> Self {
        Self::of([8, 9])
    }

    fn of(shape: [usize; 2]) -> Self {
        let device = Device::flex().autodiff();
        Self {
            weight: Param::from_tensor(Tensor::ones(shape, &device)),
        }
    }
}

type Training = FusedOptimizer<Small>;

fn sgd() -> burn::optim::ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

fn small() -> Training {
    FusedOptimizer::new(Small::init(), sgd()).unwrap()
}

fn step(training: &mut Training) {
    training
        .step(0.1, |model| model.weight.val().powi_scalar(2).sum())
        .unwrap();
}

fn after(steps: u64) -> Training {
    let mut training = small();
    (0..steps).for_each(|_| step(&mut training));
    training
}

fn save(folder: &Path, steps: u64) {
    save_as(folder, steps, steps);
}

/// Saves a training after `steps` steps as `step`.
fn save_as(folder: &Path, step: u64, steps: u64) {
    let progress = Progress::new(step).with_user_data(steps as f64 / 3.0);
    Checkpoint::at(folder)
        .save(&after(steps), &progress)
        .unwrap();
}

/// Returns all contents of a training, except the ids of its parameters.
fn contents(training: &Training) -> (Vec<u8>, Vec<Vec<u8>>) {
    let weight = training.model().weight.val().inner().into_data();
    let states = Contents::of(training.to_record()).tensors.into_iter();
    let states = states.map(|state| state.into_parts().unwrap().4.to_vec());
    (weight.as_bytes().to_vec(), states.collect())
}

/// Panics unless `folder` loads the training after `steps` steps.
#[track_caller]
fn assert_is_after(folder: &Path, steps: u64) {
    assert_loads(&Checkpoint::at(folder), steps, steps);
}

/// Panics unless `checkpoint` loads `step`, saved after `steps` steps.
#[track_caller]
fn assert_loads(checkpoint: &Checkpoint, step: u64, steps: u64) {
    let mut training = small();
    let progress: Progress<f64> = checkpoint.load(&mut training).unwrap();
    assert_eq!(progress.step, step);
    assert_eq!(progress.user_data, steps as f64 / 3.0);
    assert!(contents(&training) == contents(&after(steps)));
}

/// The files in `folder`, by their paths within it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(within) = folders.pop() {
        for entry in fs::read_dir(&within).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_path_buf();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn folder_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// The files of a checkpoint after `steps` steps.
fn saved(steps: u64) -> BTreeMap<PathBuf, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), steps);
    files(folder.path())
}

/// The files in a step folder, `training.json` last.
const FILES: [&str; 5] = [
    "model.bpk",
    "optimizer.bpk",
    "scheduler.bpk",
    "user-data.cbor",
    "training.json",
];

/// Panics unless loading `folder` fails and leaves the training unchanged. Returns the error.
#[track_caller]
fn assert_refused(folder: &Path) -> CheckpointError {
    let mut training = after(2);
    let before = contents(&training);
    let refused = Checkpoint::at(folder).load::<f64>(&mut training);
    assert!(contents(&training) == before);
    // The failed load has no later effect.
    step(&mut training);
    assert!(contents(&training) == contents(&after(3)));
    refused.expect_err("it was loaded")
}
