//! A panic in user code is passed on, and Burn's learner receives its model with the current values.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use backburn::train::FusedModel;
use burn::train::EarlyStoppingStrategy;
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::EventStoreClient;

use super::*;

/// A model that stores its weights in the witness when it is dropped.
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
    /// Creates a witness that never panics.
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
        // A clone inside a step can only be read with `val()`.
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
type Hinder = fn(Training) -> Training;

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

/// The last model is that of the completed epochs.
#[test]
fn panic_in_user_code_passes_on_and_keeps_trained_values() {
    let initial = Regression::init();
    let train = |epochs, witness: Arc<Witness>, hinder: Hinder| {
        let run = Run {
            optimizer: SgdConfig::new().init(),
            ..Run::new(epochs)
        };
        let inner = copy(&initial, Regression::init);
        let (model, folder) = (Watched { inner, witness }, folder());
        let launch = || hinder(run.training(folder.path())).launch_fused(run.learner(model));
        catch_unwind(AssertUnwindSafe(launch)).map(|result| result.model)
    };
    let in_training = Witness {
        training: 5.into(), // The first step of the second epoch.
        ..Witness::new()
    };
    let in_validation = Witness {
        validation: 7.into(), // In the second epoch.
        ..Witness::new()
    };
    let plainly = |training| training;
    let stopping = |training: Training| training.early_stopping(InTheSecondEpoch);
    let saving = |training: Training| training.with_checkpointing_strategy(InTheSecondEpoch);
    let cases: [(_, _, _, Hinder); 4] = [
        (1, in_training, "the step has had enough", plainly),
        (2, in_validation, "the step has had enough", plainly),
        (2, Witness::new(), "no stopping it", stopping),
        (2, Witness::new(), "no room left", saving),
    ];
    for (epochs, witness, message, hinder) in cases {
        let finished = train(epochs, Arc::new(Witness::new()), plainly);
        let mut expected = weights(&finished.unwrap().inner);
        expected.retain(|(path, _)| !path.contains("running"));

        let witness = Arc::new(witness);
        let panic = train(9, witness.clone(), hinder).expect_err("the panic passes on");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&message));
        assert_eq!(*witness.last.lock().unwrap(), expected, "{message}");
    }
}
