//! A learner keeps averages of the weights in its checkpoints, and validates with them if told to.

use std::path::Path;

use backburn::train::{FusedLearner, LaunchFused};
use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};
use parking_lot::Mutex;

use super::{Points, Regression, Run};
use crate::common::*;

/// The first weights that it is validated with.
static VALIDATED: Mutex<Vec<Vec<f32>>> = Mutex::new(Vec::new());

/// Shows what it is validated with.
#[derive(Module, Debug)]
struct Watched {
    inner: Regression,
}

impl Watched {
    fn init() -> Self {
        Self {
            inner: Regression::init(),
        }
    }

    fn first_weights(&self) -> Vec<f32> {
        self.inner.input.weight.val().into_data().iter().collect()
    }
}

impl TrainStep for Watched {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let output = self.inner.output(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Watched {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> RegressionOutput {
        VALIDATED.lock().push(self.first_weights());
        self.inner.output(batch)
    }
}

/// The weights of each epoch's validation, and the trained ones.
fn validated(run: Run, model: Watched, folder: &Path, validate: bool) -> (Vec<Vec<f32>>, Vec<f32>) {
    let averaging = WeightAveragingConfig::new().with_validate(validate);
    let training = run.training(folder);
    let learner = FusedLearner::new(model, run.optimizer, run.scheduler)
        .with_config_ok(FusedConfig::averaging(averaging));
    VALIDATED.lock().clear();
    let result = training.launch_fused(learner);
    let mut seen = std::mem::take(&mut *VALIDATED.lock());
    seen.dedup();
    (seen, result.model.first_weights())
}

#[test]
fn a_learner_validates_with_averages_and_its_checkpoints_hold_them() {
    let initial = Watched::init();
    let model = || copy(&initial, Watched::init);
    let folder = || tempfile::tempdir().unwrap();

    let (seen, trained) = validated(Run::new(2), model(), folder().path(), false);
    assert_eq!(seen.last(), Some(&trained));

    let (whole, same) = validated(Run::new(2), model(), folder().path(), true);
    assert_eq!(trained, same);
    assert_eq!(whole.len(), 2);
    assert_ne!(whole[1], trained);

    let folder = folder();
    validated(Run::new(1), model(), folder.path(), true);
    let resumed = Run {
        resume: Some(1),
        ..Run::new(2)
    };
    let (resumed, _) = validated(resumed, model(), folder.path(), true);
    assert_eq!(resumed, whole[1..]);
}
