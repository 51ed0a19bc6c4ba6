//! A learner keeps averages of the weights in its checkpoints, and validates with them if told to.

use parking_lot::Mutex;

use super::*;

/// The first weights of each validation.
static VALIDATED: Mutex<Vec<Vec<f32>>> = Mutex::new(Vec::new());

/// A model that records the weights of its validation.
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

    fn output(&self, batch: Points) -> RegressionOutput {
        if !batch.x.is_autodiff() {
            VALIDATED.lock().push(self.first_weights());
        }
        self.inner.output(batch)
    }
}

impl_train_step!(Watched, Points);
impl_inference_step!(Watched, Points);

/// Returns the weights of each epoch's validation, and the trained weights.
fn validated(run: Run, model: Watched, folder: &Path, validate: bool) -> (Vec<Vec<f32>>, Vec<f32>) {
    let averaging = WeightAveragingConfig::new().with_validate(validate);
    let run = Run {
        config: FusedConfig::averaging(averaging),
        ..run
    };
    VALIDATED.lock().clear();
    let result = run.fused(model, folder);
    let mut seen = std::mem::take(&mut *VALIDATED.lock());
    seen.dedup();
    (seen, result.model.first_weights())
}

/// Returns the averages after each of two epochs of a loop of its own.
fn averages(model: Watched) -> Vec<Vec<f32>> {
    let device = &Device::flex().autodiff();
    let items: Vec<_> = (0..ITEMS)
        .map(|index| Run::new(0).data.get(index).unwrap())
        .collect();
    let mut scheduler = Run::new(0).scheduler;
    let config = FusedConfig::averaging(WeightAveragingConfig::new());
    let mut fused = FusedOptimizer::new(model, Run::new(0).optimizer).unwrap();
    fused = fused.with_config(config).unwrap();
    let mut epoch = || {
        for items in items.chunks(BATCH) {
            let batch = PointBatcher.batch(items.to_vec(), device);
            let rate = scheduler.step();
            fused.step(rate, |model| model.output(batch).loss).unwrap();
        }
        fused.averaged().first_weights()
    };
    vec![epoch(), epoch()]
}

#[test]
fn learner_validates_with_averages_that_checkpoints_hold() {
    let initial = Watched::init();
    let model = || copy(&initial, Watched::init);

    let (seen, trained) = validated(Run::new(2), model(), folder().path(), false);
    assert_eq!(seen.last(), Some(&trained));

    let (whole, same) = validated(Run::new(2), model(), folder().path(), true);
    assert_eq!(trained, same);
    assert_eq!(whole.len(), 2);
    assert_ne!(whole[1], trained);
    assert_eq!(whole, averages(model()));

    let folder = folder();
    validated(Run::new(1), model(), folder.path(), true);
    let resumed = Run {
        resume: Some(1),
        ..Run::new(2)
    };
    let (resumed, _) = validated(resumed, model(), folder.path(), true);
    assert_eq!(resumed, whole[1..]);

    // As the book says: the averages of the last epoch.
    let optimizer = AdamWConfig::new().init();
    let config = FusedConfig::averaging(WeightAveragingConfig::new());
    let mut fused = FusedOptimizer::new(initial, optimizer).unwrap();
    fused = fused.with_config(config).unwrap();
    let record = OptimizerRecord::load(folder.path().join("checkpoint/optim-2.bpk"));
    fused.load_record(record.unwrap()).unwrap();
    assert_eq!(fused.averaged().first_weights(), whole[1]);
}
