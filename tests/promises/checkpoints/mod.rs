//! A training in a folder is saved whole or not at all, and loaded whole or not at all.

mod damaged;
mod killed;
mod resumed;
mod stray;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use backburn::{Checkpoint, CheckpointError, FusedOptimizer, Progress};
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Device, Tensor};
use tempfile::TempDir;

/// A model whose training is soon computed: every weight goes down by what its momentum says.
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
    FusedOptimizer::new(Small::init(), sgd())
}

fn step(training: &mut Training) {
    training.step(0.1, |model| model.weight.val().powi_scalar(2).sum());
}

/// After so many steps.
fn after(steps: u64) -> Training {
    let mut training = small();
    (0..steps).for_each(|_| step(&mut training));
    training
}

/// Saved after so many steps.
fn save(folder: &Path, steps: u64) {
    let progress = Progress::new(steps).with_plan(steps as f64 / 3.0);
    Checkpoint::at(folder)
        .save(&after(steps), &progress)
        .unwrap();
}

/// All that is in a training, but for the ids of its parameters.
fn contents(training: &Training) -> (Vec<u8>, Vec<Vec<u8>>) {
    let weight = training.model().weight.val().inner().into_data();
    let record = training.to_record().into_bytes().unwrap();
    let states = burn_pack::Reader::from_bytes(record).unwrap();
    let states = states.into_tensors().unwrap().into_iter();
    let states = states.map(|state| state.into_parts().unwrap().4.to_vec());
    (weight.as_bytes().to_vec(), states.collect())
}

/// Panics unless the checkpoint in `folder` is whole, and that after so many steps.
#[track_caller]
fn assert_is_after(folder: &Path, steps: u64) {
    let mut training = small();
    let progress: Progress<f64> = Checkpoint::at(folder).load(&mut training).unwrap();
    assert_eq!(progress.step, steps);
    assert_eq!(progress.plan, steps as f64 / 3.0);
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

/// A folder with these files.
fn folder_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// The files of a checkpoint after so many steps, and whether they are in the second slot.
fn saved(steps: u64, in_second: bool) -> BTreeMap<PathBuf, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    if in_second {
        save(folder.path(), steps + 1);
    }
    save(folder.path(), steps);
    files(folder.path())
}

fn is_part(path: &Path) -> bool {
    path.components().count() == 2
}

/// Panics unless `folder` can't be loaded, and the training is what it was; returns why.
#[track_caller]
fn assert_refused(folder: &Path) -> CheckpointError {
    let mut training = after(2);
    let before = contents(&training);
    let refused = Checkpoint::at(folder).load::<f64>(&mut training);
    assert!(contents(&training) == before);
    // Nothing of it is left behind.
    step(&mut training);
    assert!(contents(&training) == contents(&after(3)));
    refused.expect_err("it was loaded")
}
