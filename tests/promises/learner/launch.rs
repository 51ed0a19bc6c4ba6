//! A fused launch runs the same training as Burn's `Learner`.

use std::sync::{Arc, Mutex};

use burn::lr_scheduler::constant::ConstantLr;
use burn::train::checkpoint::{FileCheckpointer, KeepLastNCheckpoints};

use super::exchange::in_dtype;
use super::*;
use crate::records::exchange::optimizers;

/// Metrics and checkpoints are equal, too. The last group of an epoch is short.
#[test]
fn launch_fused_equals_launch_with_any_accumulation() {
    for (accumulation, epochs) in [(None, 4), (Some(1), 2), (Some(2), 2), (Some(3), 2)] {
        assert_same_training(Regression::init, || Run {
            accumulation,
            ..Run::new(epochs)
        });
    }
}

/// With f32 weights, and with bf16 weights whose low bits are in the optimizer state.
#[test]
fn stock_checkpoints_resume_fused_and_fused_ones_stock() {
    let all = optimizers::all().into_iter();
    let in_format = all.filter(|optimizer| optimizer.name.contains("Split"));
    let in_bf16 = in_format.map(|optimizer| ((optimizer.make)(), FloatDType::BF16));
    let adamw = (AdamWConfig::new().init(), FloatDType::F32);
    for (optimizer, dtype) in in_bf16.chain([adamw]) {
        let run = Run {
            optimizer,
            ..Run::new(3)
        };
        let initial = in_dtype(dtype);
        let model = || copy(&initial, || in_dtype(dtype));
        let whole = run.in_way(false, model(), folder().path());
        for [first, last] in [[false, true], [true, false], [true, true]] {
            let resumed = run.resumed(|run, folder| {
                let is_fused = if run.resume.is_none() { first } else { last };
                run.in_way(is_fused, model(), folder)
            });
            assert_equal_weights(&whole, &resumed);
        }
    }
}

#[test]
fn custom_checkpointers_get_stock_records() {
    let initial = Regression::init();
    let train = |fused: bool| {
        fn custom<M: LearnerModel>(
            training: SupervisedTraining<M>,
            folder: &Path,
        ) -> SupervisedTraining<M> {
            let file = |name| FileCheckpointer::new(folder.join("custom"), name);
            training
                .with_custom_checkpointers(file("a"), file("b"), file("c"))
                .with_checkpointing_strategy(KeepLastNCheckpoints::new(1))
        }
        let (run, folder) = (Run::new(3), folder());
        let folder = folder.path();
        let model = copy(&initial, Regression::init);
        if fused {
            let training = custom(run.training(folder), folder);
            training.launch_fused(run.learner(model));
        } else {
            let learner = Learner::new(model, run.optimizer.clone(), run.scheduler.clone());
            custom(run.training(folder), folder).launch(learner);
        }
        let mut names: Vec<_> = files(folder).into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name.starts_with("custom"));
        let model = Regression::init().load_file(folder.join(&names[0]));
        (names, weights(&model))
    };
    let stock = train(false);
    assert_eq!(stock.0.len(), 3);
    assert_eq!(stock, train(true));
}

#[test]
fn early_stopping_by_metric_ends_where_stock_ends() {
    let [stock, fused] = assert_same_training(Regression::init, || Run {
        early_stopping: true,
        ..Run::new(9)
    });
    assert!(stock.interrupted.is_none() && fused.interrupted.is_none());
}

#[test]
fn interruption_ends_where_stock_ends() {
    // The data stop the training, so the asynchronous event processor has no influence.
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
    for result in assert_same_training(Regression::init, run) {
        let interruption = result.interrupted.expect("the training was interrupted");
        assert_eq!(interruption.reason.as_deref(), Some("enough"));
    }
}

#[test]
fn unreadable_item_ends_training_with_its_error() {
    let run = || {
        let mut run = Run::new(2);
        run.data.on_item = Arc::new(|index| match index {
            7 => Err(DatasetError::new(std::io::Error::other("item 7 is gone"))),
            _ => Ok(()),
        });
        run
    };
    for result in assert_same_training(Regression::init, run) {
        let error = result.error.expect("the training failed").to_string();
        assert_says(&error, "item 7 is gone");
    }
}

#[test]
fn schedules_of_parameter_groups_equal_stock() {
    assert_same_training(Regression::init, || {
        let norm = ParamGroup::from_predicate("norm");
        Run {
            optimizer: SgdConfig::new().init(),
            scheduler: warm_up_then_cosine().with_group(norm, ConstantLr::new(0.5)),
            ..Run::new(3)
        }
    });
}

#[test]
fn second_backward_pass_in_train_step_is_refused() {
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

    let inner = Regression::init();
    let message = panic_of(|| Run::new(1).fused(Twice { inner }, folder().path()));
    assert_says(&message, "`inner.input.weight` was read again");
}
