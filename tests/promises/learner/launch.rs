//! A training launched fused is the training Burn's `Learner` runs.

use std::path::Path;
use std::sync::{Arc, Mutex};

use backburn::train::{FusedLearner, FusedModel, LaunchFused};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::constant::ConstantLr;
use burn::train::checkpoint::{FileCheckpointer, KeepLastNCheckpoints};
use burn::train::metric::store::EventStoreClient;
use burn::train::{
    EarlyStoppingStrategy, Learner, LearnerModel, LearningResult, RegressionOutput,
    SupervisedTraining, TrainOutput, TrainStep,
};

use super::{BATCH, ITEMS, Points, Regression, Run, files, warm_up_then_cosine};
use crate::common::*;

/// Runs stock and fused from the same record, each in a folder of its own, and asserts the same
/// weights and the same files.
fn assert_same_training(run: impl Fn() -> Run) -> [LearningResult<Regression>; 2] {
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let [stock_folder, fused_folder] = folders.each_ref().map(|folder| folder.path());
    let initial = Regression::init();

    let stock = run().stock(copy(&initial, Regression::init), stock_folder);
    let fused = run().fused(copy(&initial, Regression::init), fused_folder);

    assert_equal_weights(&stock.model, &fused.model);
    assert_changed(&initial, &fused.model, |_| true);
    assert_eq!(files(stock_folder), files(fused_folder));
    [stock, fused]
}

#[test]
fn launch_fused_equals_launch_with_metrics_and_checkpoints() {
    assert_same_training(|| Run::new(4));
}

#[test]
fn stock_checkpoints_resume_fused_and_fused_ones_stock() {
    let initial = Regression::init();
    let train = |epochs, resume, fused, folder: &Path| {
        let run = Run {
            resume,
            ..Run::new(epochs)
        };
        let model = copy(&initial, Regression::init);
        match fused {
            true => run.fused(model, folder).model,
            false => run.stock(model, folder).model,
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let whole = train(3, None, false, folder.path());

    for [first, last] in [[false, true], [true, false], [true, true]] {
        let folder = tempfile::tempdir().unwrap();
        train(2, None, first, folder.path());
        let resumed = train(3, Some(2), last, folder.path());
        assert_equal_weights(&whole, &resumed);
    }
}

#[test]
fn custom_checkpointers_get_the_stock_records() {
    let initial = Regression::init();
    let train = |fused: bool, folder: &Path| {
        fn custom<M: LearnerModel>(
            training: SupervisedTraining<M>,
            folder: &Path,
        ) -> SupervisedTraining<M> {
            let file = |name| FileCheckpointer::new(folder.join("custom"), name);
            training
                .with_custom_checkpointers(file("a"), file("b"), file("c"))
                .with_checkpointing_strategy(KeepLastNCheckpoints::new(1))
        }
        let run = Run::new(3);
        let model = copy(&initial, Regression::init);
        if fused {
            let learner = FusedLearner::new(model, run.optimizer.clone(), run.scheduler.clone());
            let training = custom(run.training::<FusedModel<Regression>>(folder), folder);
            training.launch_fused(learner);
        } else {
            let learner = Learner::new(model, run.optimizer.clone(), run.scheduler.clone());
            custom(run.training(folder), folder).launch(learner);
        }
        let mut names: Vec<_> = files(folder).into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name.starts_with("custom"));
        let model = Regression::init().load_file(folder.join(&names[0]));
        (names, weights(&model))
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let stock = train(false, folders[0].path());
    let fused = train(true, folders[1].path());
    assert_eq!(stock.0.len(), 3);
    assert_eq!(stock, fused);
}

#[test]
fn gradient_accumulation_equals_stock_with_a_short_last_group() {
    for accumulation in [1, 2, 3] {
        assert_same_training(|| Run {
            accumulation: Some(accumulation),
            ..Run::new(2)
        });
    }
}

#[test]
fn early_stopping_ends_where_stock_ends() {
    let [stock, fused] = assert_same_training(|| Run {
        early_stopping: true,
        ..Run::new(9)
    });
    assert!(stock.interrupted.is_none() && fused.interrupted.is_none());
}

#[test]
fn early_stopping_ends_the_training() {
    #[derive(Clone)]
    struct AfterTwo;

    impl EarlyStoppingStrategy for AfterTwo {
        fn should_stop(&mut self, epoch: usize, _store: &EventStoreClient) -> bool {
            epoch == 2
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(9);
    let learner = FusedLearner::new(
        Regression::init(),
        run.optimizer.clone(),
        run.scheduler.clone(),
    );
    let training = run.training::<FusedModel<Regression>>(folder.path());
    training.early_stopping(AfterTwo).launch_fused(learner);
    assert!(folder.path().join("train/epoch-2").exists());
    assert!(!folder.path().join("train/epoch-3").exists());
}

#[test]
fn interruption_ends_where_stock_ends() {
    // The asynchronous event processor has no part in it: the data stop the training.
    let run = || {
        let mut run = Run::new(3);
        let interrupter = run.interrupter.clone();
        let seen = Mutex::new(0);
        run.data.on_item = Arc::new(move |_| {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            if *seen == ITEMS + 2 * BATCH {
                interrupter.stop(Some("enough"));
            }
            Ok(())
        });
        run
    };
    for result in assert_same_training(run) {
        let interruption = result.interrupted.expect("the training was interrupted");
        assert_eq!(interruption.reason.as_deref(), Some("enough"));
    }
}

#[test]
fn an_unreadable_item_ends_the_training_with_its_error() {
    let run = || {
        let mut run = Run::new(2);
        run.data.on_item = Arc::new(|index| match index {
            7 => Err(DatasetError::new(std::io::Error::other("item 7 is gone"))),
            _ => Ok(()),
        });
        run
    };
    for result in assert_same_training(run) {
        let error = result.error.expect("the training failed").to_string();
        assert_says(&error, "item 7 is gone");
    }
}

/// Plain gradient descent that notes every learning rate.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<f64>>>);

impl Optimizer for Noting {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        _state: Option<()>,
    ) -> (Tensor<D>, Option<()>) {
        self.0.lock().unwrap().push(lr);
        (tensor - grad.mul_scalar(lr), None)
    }

    fn to_device<const D: usize>(_state: (), _device: &Device) {}
}

#[test]
fn every_update_sees_the_learning_rate_of_stock() {
    let notes = [Noting::default(), Noting::default()];
    let run = |noting: &Noting| {
        let group = ParamGroup::from_predicate("norm");
        Run {
            optimizer: noting.clone().into(),
            scheduler: warm_up_then_cosine().with_group(group, ConstantLr::new(0.5)),
            ..Run::new(3)
        }
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    run(&notes[0]).stock(Regression::init(), folders[0].path());
    run(&notes[1]).fused(Regression::init(), folders[1].path());

    let [stock, fused] = notes.map(|noting| {
        // The parameters of a step come in another order.
        let notes = noting.0.lock().unwrap();
        let mut steps: Vec<Vec<f64>> = notes.chunks(6).map(<[f64]>::to_vec).collect();
        steps
            .iter_mut()
            .for_each(|step| step.sort_by(f64::total_cmp));
        steps
    });
    assert_eq!(stock.len(), 15);
    assert_eq!(stock[0][4..], [0.5, 0.5]);
    assert!(stock[0][0] < stock[3][0] && stock[3][0] > stock[14][0]);
    assert_eq!(stock, fused);
}

#[test]
fn a_second_backward_pass_in_a_step_is_refused() {
    #[derive(Module, Debug)]
    struct Twice {
        inner: Regression,
    }

    impl TrainStep for Twice {
        type Input = Points;
        type Output = RegressionOutput;

        fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
            TrainStep::step(&self.inner, batch.clone());
            TrainStep::step(&self.inner, batch)
        }
    }

    impl_inference_step!(Twice, Points, inner);

    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(1);
    let model = Twice {
        inner: Regression::init(),
    };
    let learner = FusedLearner::new(model, run.optimizer.clone(), run.scheduler.clone());
    let training = run.training::<FusedModel<Twice>>(folder.path());
    let training = std::panic::AssertUnwindSafe(|| training.launch_fused(learner));
    let payload = std::panic::catch_unwind(training).err().unwrap();
    let message = payload.downcast_ref::<String>().unwrap();
    assert_says(&message, "`inner.input.weight` was read again");
}
