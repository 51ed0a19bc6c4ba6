//! A save on another thread contains the values of the moment of its request.

use std::sync::{Arc, Mutex};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::store::ModuleRecord;
use burn::train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError, KeepLastNCheckpoints};

use super::*;

/// A recorder that saves only after the end of the training.
struct Held<R>(Arc<Mutex<Vec<R>>>);

impl<R> Default for Held<R> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<R> Held<R> {
    fn again(&self) -> Self {
        Self(self.0.clone())
    }

    fn all(self) -> Vec<R> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl<R: Checkpoint> Checkpointer<R> for Held<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        self.0.lock().unwrap().push(record);
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        unreachable!("no training resumes")
    }
}

/// Returns the records of all epochs, before they are read.
fn train(initial: &Regression, epochs: usize) -> (Vec<ModuleRecord>, Vec<OptimizerRecord>) {
    let device = &initial.devices()[0];
    let (run, folder) = (Run::new(epochs), folder());
    let (models, optimizers) = (Held::default(), Held::default());
    let schedulers = Held::<LrSchedulerRecord>::default();
    let training = run
        .training(folder.path())
        .with_custom_checkpointers(models.again(), optimizers.again(), schedulers)
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(epochs));
    let model = copy(initial, || Regression::init_on(device));
    training.launch_fused(run.learner(model));
    (models.all(), optimizers.all())
}

/// The tensors of a record, one after the other.
fn moments(record: OptimizerRecord) -> Vec<f32> {
    let mut tensors = Contents::of(record).tensors;
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let values = tensors.into_iter().flat_map(|tensor| {
        let bytes = tensor.into_parts().unwrap().4;
        let values = bytes.chunks_exact(4);
        let values = values.map(|value| f32::from_le_bytes(value.try_into().unwrap()));
        values.collect::<Vec<_>>()
    });
    values.collect()
}

fn late_save_contains_values_of_requested_epoch(device: &Device) {
    let initial = Regression::init_on(device);
    let (models, optimizers) = train(&initial, 3);
    assert_eq!((models.len(), optimizers.len()), (3, 3));
    for (index, (model, optimizer)) in models.into_iter().zip(optimizers).enumerate() {
        // There is no later update.
        let (mut expected_models, mut expected_optimizers) = train(&initial, index + 1);
        let load = |record| Regression::init_on(device).load_record(record);
        let expected = load(expected_models.pop().unwrap());
        assert_equal_weights(&expected, &load(model));
        let expected = moments(expected_optimizers.pop().unwrap());
        let found = moments(optimizer);
        let tolerance = if is_exact(device) { 0.0 } else { 1e-4 };
        assert_eq!(expected.len(), found.len());
        let mut pairs = expected.iter().zip(&found);
        assert!(pairs.all(|(expected, found)| (expected - found).abs() <= tolerance));
    }
}

on_every_backend!(late_save_contains_values_of_requested_epoch);
