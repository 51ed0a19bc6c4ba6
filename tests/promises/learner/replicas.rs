//! A training launched on several devices is the training that Burn's `Learner` runs there.

use std::path::Path;

use backburn::train::{FusedLearner, LaunchFused};
use burn::train::{ExecutionStrategy, MultiDeviceOptim, TrainOutput, TrainStep, TrainingError};

use super::{Points, Regression, Run, files};
use crate::common::*;

fn flex(ranks: usize) -> Vec<Device> {
    vec![Device::flex().autodiff(); ranks]
}

type Strategy = fn() -> ExecutionStrategy;

fn two_sharded() -> ExecutionStrategy {
    ExecutionStrategy::multi(flex(2), MultiDeviceOptim::OptimSharded)
}

fn two_on_main() -> ExecutionStrategy {
    ExecutionStrategy::multi(flex(2), MultiDeviceOptim::OptimMainDevice)
}

fn four_sharded() -> ExecutionStrategy {
    ExecutionStrategy::multi(flex(4), MultiDeviceOptim::OptimSharded)
}

fn one() -> ExecutionStrategy {
    ExecutionStrategy::single(Device::flex().autodiff())
}

/// The metric logs of an epoch but for their lines, whose order is that of the workers in stock Burn.
fn logs(folder: &Path) -> Vec<(String, Vec<String>)> {
    let logs = files(folder).into_iter().map(|(name, content)| {
        // The values, without their place in the epoch.
        let values = content
            .lines()
            .map(|line| line.split(',').next().unwrap_or(line));
        let mut values: Vec<_> = values.map(str::to_string).collect();
        values.sort();
        (name, values)
    });
    logs.collect()
}

#[test]
fn launch_fused_equals_launch_on_several_devices() {
    let initial = Regression::init();
    for strategy in [two_sharded as Strategy, two_on_main, one] {
        for sharding in [Sharding::State, Sharding::Full] {
            let run = || Run {
                strategy: Some(strategy),
                sharding,
                ..Run::new(3)
            };
            let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
            let [stock_folder, fused_folder] = folders.each_ref().map(|folder| folder.path());
            let stock = run().stock(copy(&initial, Regression::init), stock_folder);
            let fused = run().fused(copy(&initial, Regression::init), fused_folder);
            assert!(fused.error.is_none());
            assert_equal_weights(&stock.model, &fused.model);
            assert_changed(&initial, &fused.model, |_| true);
            assert_eq!(logs(stock_folder), logs(fused_folder));
        }
    }
}

/// Stock adds gradients up in the order in which its workers come, or over the micro-batches first.
#[test]
fn accumulation_equals_stock_but_for_the_order_of_the_sums() {
    let initial = Regression::init();
    for strategy in [two_sharded as Strategy, two_on_main] {
        let run = || Run {
            strategy: Some(strategy),
            accumulation: Some(2),
            // AdamW makes steps of what rounding leaves of the gradient of a bias before a batch norm.
            optimizer: SgdConfig::new().init(),
            ..Run::new(3)
        };
        let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
        let stock = run().stock(copy(&initial, Regression::init), folders[0].path());
        let fused = run().fused(copy(&initial, Regression::init), folders[1].path());
        assert_near_weights(&stock.model, &fused.model, 1e-5, 0.0);
    }
}

/// The loaders of four devices end at different steps: 14 items are 3, 3, 3 and 5.
#[test]
fn uneven_loaders_end_as_in_stock() {
    let initial = Regression::init();
    let run = || Run {
        strategy: Some(four_sharded),
        ..Run::new(2)
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let stock = run().stock(copy(&initial, Regression::init), folders[0].path());
    let fused = run().fused(copy(&initial, Regression::init), folders[1].path());
    // The mean of four running statistics is added up in the order of a hash map.
    assert_near_weights(&stock.model, &fused.model, 1e-6, 0.0);
    let trained = |model: &Regression| {
        let mut weights = weights(model);
        weights.retain(|(path, _)| !path.contains("running"));
        weights
    };
    assert_eq!(trained(&stock.model), trained(&fused.model));
}

#[test]
fn checkpoints_go_on_with_another_number_of_devices() {
    let initial = Regression::init();
    let train = |epochs, resume, fused: bool, strategy, folder: &Path| {
        let run = Run {
            resume,
            strategy: Some(strategy),
            ..Run::new(epochs)
        };
        let model = copy(&initial, Regression::init);
        let result = match fused {
            true => run.fused(model, folder),
            false => run.stock(model, folder),
        };
        assert!(result.error.is_none());
        result.model
    };
    let ways: [(Strategy, Strategy); 3] = [
        (two_sharded, one),
        (one, two_on_main),
        (two_sharded, two_sharded),
    ];
    for (first, then) in ways {
        let mut models = Vec::new();
        // Stock and stock, stock and fused, fused and stock, fused and fused.
        for (fused_first, fused_then) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let folder = tempfile::tempdir().unwrap();
            train(2, None, fused_first, first, folder.path());
            models.push(train(3, Some(2), fused_then, then, folder.path()));
        }
        for model in &models[1..] {
            assert_equal_weights(&models[0], model);
        }
    }
}

#[test]
fn early_stopping_ends_where_stock_ends_on_several_devices() {
    let initial = Regression::init();
    let run = || Run {
        early_stopping: true,
        strategy: Some(two_sharded),
        ..Run::new(9)
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let stock = run().stock(copy(&initial, Regression::init), folders[0].path());
    let fused = run().fused(copy(&initial, Regression::init), folders[1].path());
    assert_equal_weights(&stock.model, &fused.model);
    let names = |folder: &Path| {
        files(folder)
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(folders[0].path()), names(folders[1].path()));
}

/// Clipping with a norm that is never exceeded, in two passes: equal to stock.
#[test]
fn policies_hold_on_several_devices() {
    let initial = Regression::init();
    let run = || Run {
        strategy: Some(two_sharded),
        ..Run::new(2)
    };
    let folder = tempfile::tempdir().unwrap();
    let stock = run().stock(copy(&initial, Regression::init), folder.path());
    for sharding in [Sharding::State, Sharding::Full] {
        let folder = tempfile::tempdir().unwrap();
        let run = run();
        let training = run.training(folder.path());
        let model = copy(&initial, Regression::init);
        let learner = FusedLearner::new(model, run.optimizer, run.scheduler)
            .with_training_strategy_ok(two_sharded())
            .with_config_ok(
                FusedConfig::sharded(sharding)
                    .with_clipping(Some(GlobalNormClippingConfig::Exact(1e9))),
            );
        let fused = training.launch_fused(learner);
        assert!(fused.error.is_none());
        assert_equal_weights(&stock.model, &fused.model);
    }
}

#[test]
fn a_loss_that_is_not_scaled_names_the_rank() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(1);
    let training = run.training(folder.path());
    let learner = FusedLearner::new(Regression::init(), run.optimizer, run.scheduler)
        .with_training_strategy_ok(two_sharded())
        .with_config_ok(FusedConfig::scaling(LossScalingConfig::new()));
    let result = training.launch_fused(learner);
    let Some(error) = result.error else {
        panic!("the training should have ended with an error")
    };
    let TrainingError::Workers(failures) = &*error else {
        panic!("{error:?}")
    };
    assert!(failures[0].message.contains("scale_loss"), "{failures:?}");
}

#[test]
fn what_can_not_be_fused_is_refused() {
    let learner = || {
        let run = Run::new(1);
        FusedLearner::new(Regression::init(), run.optimizer, run.scheduler)
    };
    let none = ExecutionStrategy::multi(Vec::new(), MultiDeviceOptim::OptimSharded);
    let error = learner().with_training_strategy(none).err().unwrap();
    assert_matches!(error, FusedError::Replicas { .. });

    let folder = tempfile::tempdir().unwrap();
    let training = Run::new(1).training(folder.path());
    let offload = OffloadConfig::new(Offload::Updates);
    let learner = learner()
        .with_training_strategy_ok(two_sharded())
        .with_config_ok(FusedConfig::offload(offload));
    let text = panic_of(move || training.launch_fused(learner));
    assert_says(&text, "can't be offloaded");

    let run = Run {
        sharding: Sharding::Full,
        ..Run::new(1)
    };
    let folder = folder.path().to_path_buf();
    let text = panic_of(move || run.fused(Regression::init(), &folder));
    assert_says(&text, "`with_training_strategy`");
}

/// A step of a training, as a model's own.
#[test]
fn a_step_that_panics_on_a_rank_ends_the_training_with_its_name() {
    #[derive(Module, Debug)]
    struct Failing {
        regression: Regression,
    }

    impl TrainStep for Failing {
        type Input = Points;
        type Output = burn::train::RegressionOutput;

        fn step(&self, batch: Points) -> TrainOutput<Self::Output> {
            let first: f32 = batch.x.clone().into_data().iter().next().unwrap();
            assert!(first < 0.5, "beyond the middle");
            let output = self.regression.output(batch);
            TrainOutput::new(self, output.loss.backward(), output)
        }
    }

    impl burn::train::InferenceStep for Failing {
        type Input = Points;
        type Output = burn::train::RegressionOutput;

        fn step(&self, batch: Points) -> Self::Output {
            self.regression.output(batch)
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(1);
    let training = run.training(folder.path());
    let model = Failing {
        regression: Regression::init(),
    };
    // The second half of the data is that of the second device.
    let learner = FusedLearner::new(model, run.optimizer, run.scheduler)
        .with_training_strategy_ok(two_sharded());
    let result = training.launch_fused(learner);
    let error = result.error.expect("the training ends with an error");
    let TrainingError::Workers(failures) = &*error else {
        panic!("{error:?}")
    };
    assert_eq!((failures.len(), failures[0].device_id), (1, 1));
    assert!(failures[0].message.contains("beyond the middle"));
}
