//! A panic in user code passes on, and Burn's learner has its model back: the values trained so far.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use backburn::train::{FusedLearner, FusedModel, LaunchFused};
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::EventStoreClient;
use burn::train::{
    EarlyStoppingStrategy, InferenceStep, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep,
};

use super::{Points, Regression, Run};
use crate::common::*;

/// A model that leaves its weights to the witness when it is dropped.
#[derive(Clone, Debug)]
struct Watched {
    inner: Regression,
    witness: Arc<Witness>,
}

#[derive(Debug, Default)]
struct Witness {
    last: Mutex<Vec<(String, TensorData)>>,
    /// Steps until one panics, in training and in validation.
    training: AtomicUsize,
    validation: AtomicUsize,
}

impl Witness {
    /// One that panics in no step.
    fn new() -> Self {
        Self {
            training: usize::MAX.into(),
            validation: usize::MAX.into(),
            ..Self::default()
        }
    }

    fn count_down(steps: &AtomicUsize) {
        if steps.fetch_sub(1, Ordering::Relaxed) == 0 {
            panic!("the step has had enough");
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A clone that is lent to a step can't be read around `val()`.
        let Ok(mut weights) = catch_unwind(AssertUnwindSafe(|| weights(&self.inner))) else {
            return;
        };
        weights.retain(|(path, _)| !path.contains("running"));
        *self.witness.last.lock().unwrap() = weights;
    }
}

impl Watched {
    fn with(&self, inner: Regression) -> Self {
        let witness = self.witness.clone();
        Self { inner, witness }
    }

    fn inner(&self) -> Regression {
        self.inner.clone()
    }
}

impl std::fmt::Display for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Module for Watched {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.inner.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with(self.inner().fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with(self.inner().to_device(device))
    }

    fn train(self) -> Self {
        self.with(self.inner().train())
    }

    fn valid(&self) -> Self {
        self.with(self.inner.valid())
    }

    fn materialize(self) -> Self {
        self.with(self.inner().materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.inner.visit(visitor);
    }

    fn map<P: ModuleMapper>(self, mapper: &mut P) -> Self {
        self.with(self.inner().map(mapper))
    }
}

impl TrainStep for Watched {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        Witness::count_down(&self.witness.training);
        TrainStep::step(&self.inner, batch)
    }
}

impl InferenceStep for Watched {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> RegressionOutput {
        Witness::count_down(&self.witness.validation);
        InferenceStep::step(&self.inner, batch)
    }
}

type Training = SupervisedTraining<FusedModel<Watched>>;

/// Launches a training that `hinder` makes panic after `epochs` of training, and asserts that the
/// last model there was is the one so far.
#[track_caller]
fn assert_whole_after(
    epochs: usize,
    witness: Witness,
    message: &str,
    hinder: impl FnOnce(Training) -> Training,
) {
    let initial = Regression::init();
    let train = |epochs, witness: Arc<Witness>, hinder: &mut dyn FnMut(Training) -> Training| {
        let folder = tempfile::tempdir().unwrap();
        let run = Run {
            optimizer: SgdConfig::new().init(),
            ..Run::new(epochs)
        };
        let model = Watched {
            inner: copy(&initial, Regression::init),
            witness,
        };
        let learner = FusedLearner::new(model, run.optimizer.clone(), run.scheduler.clone());
        let training = hinder(run.training(folder.path()));
        catch_unwind(AssertUnwindSafe(|| training.launch_fused(learner).model))
    };
    let finished = train(epochs, Arc::new(Witness::new()), &mut |training| training);
    let mut expected = weights(&finished.unwrap().inner);
    expected.retain(|(path, _)| !path.contains("running"));

    let witness = Arc::new(witness);
    let mut hinder = Some(hinder);
    let hindered = train(9, witness.clone(), &mut |training| {
        hinder.take().unwrap()(training)
    });
    let panic = hindered.expect_err("the panic passes on");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&message));
    assert_eq!(*witness.last.lock().unwrap(), expected);
}

#[test]
fn a_panic_in_a_training_step() {
    let witness = Witness {
        training: 5.into(), // The first of the second epoch.
        ..Witness::new()
    };
    assert_whole_after(1, witness, "the step has had enough", |training| training);
}

#[test]
fn a_panic_in_a_validation_step() {
    let witness = Witness {
        validation: 7.into(), // In the second epoch.
        ..Witness::new()
    };
    assert_whole_after(2, witness, "the step has had enough", |training| training);
}

#[derive(Clone)]
struct InTheSecondEpoch;

impl EarlyStoppingStrategy for InTheSecondEpoch {
    fn should_stop(&mut self, epoch: usize, _store: &EventStoreClient) -> bool {
        assert!(epoch < 2, "no stopping it");
        false
    }
}

impl CheckpointingStrategy for InTheSecondEpoch {
    fn checkpointing(
        &mut self,
        epoch: usize,
        _store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        assert!(epoch < 2, "no room left");
        vec![CheckpointingAction::Save]
    }
}

#[test]
fn a_panic_in_early_stopping() {
    assert_whole_after(2, Witness::new(), "no stopping it", |training| {
        training.early_stopping(InTheSecondEpoch)
    });
}

#[test]
fn a_panic_in_a_checkpointing_strategy() {
    assert_whole_after(2, Witness::new(), "no room left", |training| {
        training.with_checkpointing_strategy(InTheSecondEpoch)
    });
}
