//! A fused launch on several devices runs the same training as Burn's `Learner`.

use burn::train::{MultiDeviceOptim, TrainingError};

use super::*;

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

/// Burn runs a list of one device as a single device.
fn list_of_one() -> ExecutionStrategy {
    ExecutionStrategy::multi(flex(1), MultiDeviceOptim::OptimSharded)
}

fn one() -> ExecutionStrategy {
    ExecutionStrategy::single(Device::flex().autodiff())
}

fn on(strategy: Strategy, epochs: usize) -> Run {
    Run {
        strategy: Some(strategy),
        ..Run::new(epochs)
    }
}

type Logs = Vec<(String, Vec<String>)>;

/// Returns the metric logs of an epoch without the order of their lines, which depends on the workers in stock Burn.
fn logs(folder: &Path) -> Logs {
    let logs = files(folder).into_iter().map(|(name, content)| {
        // The values, without their position in the epoch.
        let values = content
            .lines()
            .map(|line| line.split(',').next().unwrap_or(line));
        let mut values: Vec<_> = values.map(str::to_string).collect();
        values.sort();
        (name, values)
    });
    logs.collect()
}

/// Returns the models and logs of stock and fused training from one record.
fn trained(run: &Run) -> [(Regression, Logs); 2] {
    let initial = Regression::init();
    [false, true].map(|is_fused| {
        let folder = folder();
        let model = copy(&initial, Regression::init);
        let model = run.in_way(is_fused, model, folder.path());
        assert_changed(&initial, &model, |_| true);
        (model, logs(folder.path()))
    })
}

/// Clipping with a norm that is never exceeded takes two passes, and changes nothing.
#[test]
fn launch_fused_equals_launch_on_several_devices() {
    for strategy in [two_sharded as Strategy, two_on_main, list_of_one, one] {
        for sharding in [Sharding::State, Sharding::Full] {
            let plain = FusedConfig::sharded(sharding);
            let clipped = FusedConfig::exact(1e9).with_sharding(sharding);
            for config in [plain, clipped] {
                let run = Run {
                    config,
                    ..on(strategy, 3)
                };
                let [(stock, stock_logs), (fused, logs)] = trained(&run);
                assert_equal_weights(&stock, &fused);
                assert_eq!(stock_logs, logs);
            }
        }
    }
}

/// Stock Burn sums gradients in the order in which its workers finish, or first over the micro-batches.
#[test]
fn accumulation_on_devices_equals_stock_but_for_order_of_sums() {
    for strategy in [two_sharded as Strategy, two_on_main] {
        let run = Run {
            accumulation: Some(2),
            // AdamW makes full steps of the rounding error in the gradient of a bias before a batch norm.
            optimizer: SgdConfig::new().init(),
            ..on(strategy, 3)
        };
        let [(stock, _), (fused, _)] = trained(&run);
        assert_near_weights(&stock, &fused, 1e-5, 0.0);
    }
}

/// The loaders of four devices end at different steps: 14 items are 3, 3, 3 and 5.
#[test]
fn uneven_loaders_end_as_in_stock() {
    let [(stock, _), (fused, _)] = trained(&on(four_sharded, 2));
    // The mean of four running statistics is summed in the order of a hash map.
    assert_near_weights(&stock, &fused, 1e-6, 0.0);
    assert_kept(&stock, &fused, |_| true);
}

#[test]
fn checkpoints_resume_with_another_number_of_devices() {
    let initial = Regression::init();
    let ways: [(Strategy, Strategy); 3] = [
        (two_sharded, one),
        (one, two_on_main),
        (two_sharded, two_sharded),
    ];
    for (first, then) in ways {
        // Stock and stock, stock and fused, fused and stock, fused and fused.
        let ways = [(false, false), (false, true), (true, false), (true, true)];
        let [expected, others @ ..] = ways.map(|(fused_first, fused_then)| {
            Run::new(3).resumed(|run, folder| {
                let (strategy, is_fused) = match run.resume {
                    None => (first, fused_first),
                    Some(_) => (then, fused_then),
                };
                let run = Run {
                    strategy: Some(strategy),
                    ..run
                };
                run.in_way(is_fused, copy(&initial, Regression::init), folder)
            })
        });
        for model in &others {
            assert_equal_weights(&expected, model);
        }
    }
}

#[test]
fn early_stopping_on_devices_ends_where_stock_ends() {
    let run = Run {
        early_stopping: true,
        ..on(two_sharded, 9)
    };
    let [(stock, stock_logs), (fused, logs)] = trained(&run);
    assert_equal_weights(&stock, &fused);
    assert_eq!(stock_logs, logs);
}

/// The failures of the workers of a training.
fn failures<M: OnPoints>(run: &Run, model: M) -> Vec<(usize, String)> {
    let error = run.fused(model, folder().path()).error;
    match error.as_deref() {
        Some(TrainingError::Workers(failures)) => {
            let failures = failures.iter();
            let failures = failures.map(|failure| (failure.device_id, failure.message.clone()));
            failures.collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn loss_that_is_not_scaled_is_an_error_of_rank() {
    let run = Run {
        config: FusedConfig::scaling(LossScalingConfig::new()),
        ..on(two_sharded, 1)
    };
    assert_says(&failures(&run, Regression::init())[0].1, "scale_loss");
}

#[test]
fn launch_that_devices_do_not_support_is_refused() {
    let none = ExecutionStrategy::multi(Vec::new(), MultiDeviceOptim::OptimSharded);
    let learner = Run::new(1).learner(Regression::init());
    let error = learner.with_training_strategy(none).err().unwrap();
    assert_matches!(error, FusedError::Replicas { .. });

    let offload = OffloadConfig::new(Offload::Updates);
    for (config, strategy, words) in [
        (
            FusedConfig::offload(offload),
            Some(two_sharded as Strategy),
            "can't be offloaded",
        ),
        (
            FusedConfig::sharded(Sharding::Full),
            None,
            "`with_training_strategy`",
        ),
    ] {
        let run = Run {
            strategy,
            config,
            ..Run::new(1)
        };
        let message = panic_of(|| run.fused(Regression::init(), folder().path()));
        assert_says(&message, words);
    }
}

#[test]
fn panic_in_train_step_on_rank_ends_training_with_its_name() {
    #[derive(Module, Debug)]
    struct Failing {
        regression: Regression,
    }

    impl TrainStep for Failing {
        type Input = Points;
        type Output = RegressionOutput;

        fn step(&self, batch: Points) -> TrainOutput<Self::Output> {
            let first: f32 = batch.x.clone().into_data().iter().next().unwrap();
            assert!(first < 0.5, "beyond the middle");
            TrainStep::step(&self.regression, batch)
        }
    }

    impl_inference_step!(Failing, Points, regression);

    let regression = Regression::init();
    // The second half of the data is that of the second device.
    let model = || Failing {
        regression: regression.clone(),
    };
    let failures = failures(&on(two_sharded, 1), model());
    let [(1, message)] = &failures[..] else {
        panic!("{failures:?}")
    };
    assert_says(message, "beyond the middle");
    let alone = || on(list_of_one, 1).fused(model(), folder().path());
    assert_says(&panic_of(alone), "beyond the middle");
}
