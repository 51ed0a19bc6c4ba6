//! Steps while another thread draws random numbers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::*;
use crate::{Last, Model, distance, keep, on_cpu};

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while another thread repeatedly draws from the generator of `device`.
fn disturbed<R>(device: &Device, pause: Duration, work: impl FnOnce() -> R) -> R {
    let (done, device) = (AtomicBool::new(false), device.clone().inner());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(Tensor::<1>::random([3], Distribution::Default, &device).into_data());
                std::thread::sleep(pause);
            }
        });
        let _done = Done(&done);
        work()
    })
}

type Dropping = (Param<Tensor<1>>, Dropout);

/// Trains a block with dropout and a loss that is linear in the weight. Its gradient is the factor of the forward pass,
/// and zero where the mask is. Returns the number of successful steps.
fn steps_with_the_mask_of_their_loss(device: &Device, steps: usize) -> usize {
    let dropout = DropoutConfig::new(0.5).init();
    let weight = Param::from_tensor(Tensor::<1>::ones([64], device));
    let seen = Last::default();
    let mut fused = FusedOptimizer::new_ok((weight, dropout), SgdConfig::new().init())
        .with_hook(ParamGroup::all(), keep(&seen));
    let ended = (0..steps).map(|_| {
        let drop = |(weight, dropout): &Dropping, x: Tensor<1>| {
            // Long enough for other threads to run in between.
            let noise = Tensor::<1>::random([50_000], Distribution::Default, &x.device());
            dropout.forward(weight.val() * x) + noise.mean().detach() * 0.0
        };
        let step = fused.step(0.0, |model| {
            let x = Tensor::ones([64], device);
            let dropped = gradient_checkpointing(model, x, drop);
            (dropped.clone().sum(), dropped.detach())
        });
        match step {
            Ok((_, dropped)) => {
                let dropped: Vec<f32> = dropped.into_data().iter().collect();
                assert_eq!(*seen.lock().unwrap(), dropped, "another mask");
                true
            }
            Err(FusedError::RandomNumbers { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    });
    ended.filter(|well| *well).count()
}

fn disturbed_block_repeats_its_mask_or_ends_step(device: &Device) {
    let well = [0, 1, 20, 1000].map(|pause| {
        let pause = Duration::from_micros(pause);
        disturbed(device, pause, || {
            steps_with_the_mask_of_their_loss(device, 25)
        })
    });
    assert!(well.iter().sum::<usize>() > 0);
}

fn concurrent_trainings_with_dropout_wait(device: &Device) {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let train = || {
            start.wait();
            steps_with_the_mask_of_their_loss(device, 25)
        };
        let threads = [scope.spawn(train), scope.spawn(train)];
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 25);
        }
    });
}

fn draws_outside_of_blocks_wait_for_blocks(device: &Device) {
    let x = Tensor::<3>::random([4, 5, 3], Distribution::Default, device);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let blocks = scope.spawn(|| {
            start.wait();
            steps_with_the_mask_of_their_loss(device, 50)
        });
        scope.spawn(|| {
            let mut fused = FusedOptimizer::new_ok(Model::init(device), SgdConfig::new().init());
            start.wait();
            for _ in 0..25 {
                fused.step_ok(1e-2, |model| model.loss(x.clone()));
            }
        });
        assert_eq!(blocks.join().unwrap(), 50);
    });
}

/// The blocks of one training draw nothing, and the other training clips.
fn concurrent_trainings_of_two_kinds_wait(device: &Device) {
    let start = Barrier::new(2);
    let x = Tensor::<3>::random([4, 5, 3], Distribution::Default, device);
    thread::scope(|scope| {
        scope.spawn(|| {
            let model = LinearConfig::new(8, 8).init(device);
            let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
            let x = Tensor::<2>::ones([4, 8], device);
            start.wait();
            for _ in 0..50 {
                let run = |linear: &Linear, x| linear.forward(x);
                fused.step_ok(1e-2, |model| {
                    gradient_checkpointing(model, x.clone(), run).mean()
                });
            }
        });
        scope.spawn(|| {
            let config = FusedConfig::exact(1e-3);
            let mut fused = FusedOptimizer::new_ok(Model::init(device), SgdConfig::new().init())
                .with_config_ok(config);
            start.wait();
            for _ in 0..25 {
                fused.step_repeatable_ok(1e-2, |model| model.loss(x.clone()));
            }
        });
    });
}

/// Runs `work` while the forward pass of another training that draws holds the lock of the generators.
fn while_locked<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let model = || {
        (
            Param::from_tensor(Tensor::<1>::ones([64], device)),
            DropoutConfig::new(0.5).init(),
        )
    };
    let mut other = FusedOptimizer::new_ok(model(), SgdConfig::new().init());
    let block = |(weight, dropout): &Dropping, x: Tensor<1>| dropout.forward(weight.val() * x);
    let [locked, done] = [(); 2].map(|()| Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let step = other.step(0.0, |model| {
                locked.wait();
                done.wait();
                gradient_checkpointing(model, Tensor::ones([64], device), block).sum()
            });
            step.unwrap();
        });
        locked.wait();
        let result = work();
        done.wait();
        result
    })
}

/// Constructs trainings of lazy models on other threads while a block with dropout runs for the first time.
fn lazy_model_waits_for_block_of_another_training(device: &Device) {
    static OTHERS: Mutex<Vec<thread::JoinHandle<()>>> = Mutex::new(Vec::new());
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let model = (
        Param::from_tensor(Tensor::<1>::ones([64], device)),
        DropoutConfig::new(0.5).init(),
    );
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
    let block = |(weight, dropout): &Dropping, x: Tensor<1>| {
        if RUNS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            let device = x.device().inner().autodiff();
            let other = thread::spawn(move || {
                let lazy = LinearConfig::new(64, 64).init(&device);
                FusedOptimizer::new_ok(lazy, SgdConfig::new().init());
            });
            OTHERS.lock().unwrap().push(other);
            thread::sleep(Duration::from_millis(20));
            eprintln!("RUN");
        }
        dropout.forward(weight.val() * x)
    };
    for _ in 0..3 {
        fused.step_ok(0.1, |model| {
            gradient_checkpointing(model, Tensor::ones([64], device), block).sum()
        });
    }
    for other in OTHERS.lock().unwrap().drain(..) {
        other.join().unwrap();
    }
}

/// Steps a model that drew nothing in its first step and now draws in `loss`, first without the lock and then with it.
fn begins_to_draw(device: &Device, loss: impl Fn(&Dropping, bool) -> Tensor<1>) {
    let weight = Param::from_tensor(Tensor::<1>::ones([64], device));
    let model = (weight, DropoutConfig::new(0.5).init());
    // A step in two passes begins with a seed, so it is observed to draw nothing.
    let config = FusedConfig::exact(1e-3);
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init()).with_config_ok(config);
    let mut step = |draws| fused.step_repeatable(0.1, |model| loss(model, draws));
    step(false).unwrap();
    let error = while_locked(device, || step(true)).unwrap_err();
    assert_matches!(error, FusedError::RandomNumbers { .. });
    step(true).unwrap();
}

fn model_that_draws_first_without_lock_ends_step(device: &Device) {
    // Other dropped elements result in another norm.
    let x = Tensor::<1, Int>::arange(0..64, device).float();
    begins_to_draw(device, |(weight, dropout), draws| match draws {
        true => (dropout.forward(weight.val()) * x.clone()).sum(),
        false => (weight.val() * x.clone()).sum(),
    });
    let quiet = |(weight, _): &Dropping, x: Tensor<1>| weight.val() * x;
    let draws_in_block =
        |(weight, dropout): &Dropping, x: Tensor<1>| dropout.forward(weight.val() * x);
    begins_to_draw(device, |model, draws| match draws {
        true => gradient_checkpointing(model, x.clone(), draws_in_block).sum(),
        false => gradient_checkpointing(model, x.clone(), quiet).sum(),
    });
}

fn model_that_draws_nothing_is_not_disturbed(device: &Device) {
    let initial: Vec<Linear> = (0..4)
        .map(|_| LinearConfig::new(8, 8).init(device))
        .collect();
    let init = || {
        (0..4)
            .map(|_| LinearConfig::new(8, 8).init(device))
            .collect()
    };
    let x = Tensor::<2>::random([16, 8], Distribution::Default, device);
    let train = |recompute: bool| {
        let model = copy(&initial, init);
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init())
            .with_config_ok(FusedConfig::exact(1e-2));
        for _ in 0..20 {
            fused.step_repeatable_ok(1e-2, |model| {
                let run = |linear: &Linear, x| linear.forward(x).tanh();
                let forward = |x, linear| block_if(recompute, linear, x, run);
                model.iter().fold(x.clone(), forward).powi_scalar(2).mean()
            });
        }
        fused.model()
    };
    let quiet = train(false);
    let disturbed = disturbed(device, Duration::ZERO, || train(true));
    assert_equal_weights(&quiet, &disturbed);
}

fn disturbed_exact_clipping_repeats_mask_or_ends_step(device: &Device) {
    let max_norm = 1e-3;
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    for pause in [0, 20, 1000] {
        for _ in 0..10 {
            let before = Model::init(device);
            let mut fused = FusedOptimizer::new_ok(before.clone(), SgdConfig::new().init())
                .with_config_ok(FusedConfig::exact(max_norm));
            let step = disturbed(device, Duration::from_micros(pause), || {
                fused.step_repeatable(1.0, |model| model.loss(x.clone()))
            });
            let moved = distance(&before, &fused.model()) / max_norm;
            match step {
                Ok(_) => {
                    assert!(
                        (moved - 1.0).abs() < 1e-3,
                        "moved by {moved} of the maximum"
                    );
                }
                Err(FusedError::RandomNumbers { .. }) => assert_eq!(moved, 0.0),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A thread draws in the second run of the block in the pass that updates, when later layers have moved.
fn disturbed_step_updates_once(device: &Device) {
    let updates = Arc::new(Mutex::new(Vec::new()));
    let model: Vec<Linear> = (0..3)
        .map(|_| LinearConfig::new(8, 8).init(device))
        .collect();
    let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
        .with_config_ok(FusedConfig::exact(1e-3))
        .with_hook(
            ParamGroup::all(),
            hook({
                let updates = updates.clone();
                move |it| {
                    updates.lock().unwrap().push(it.path.to_string());
                    Answer::Use
                }
            }),
        );
    let x = Tensor::<2>::random([4, 8], Distribution::Default, device);
    let inner = device.clone().inner();
    let second_runs = Arc::new(AtomicUsize::new(0));
    let before = fused.model();
    let result = fused.step_repeatable(1e-2, |model| {
        let block = (model[0].clone(), DropoutConfig::new(0.5).init());
        type Constants = Constant<(Device, Arc<AtomicUsize>)>;
        let drop =
            |(linear, dropout): &(Linear, Dropout),
             (x, Constant((device, second_runs))): (Tensor<2>, Constants)| {
                // The first run is in the measuring pass.
                if linear.weight.val().is_tracked()
                    && second_runs.fetch_add(1, Ordering::Relaxed) > 0
                {
                    // As another thread would.
                    Tensor::<1>::random([3], Distribution::Default, &device);
                }
                dropout.forward(linear.forward(x))
            };
        let input = (x.clone(), Constant((inner.clone(), second_runs.clone())));
        let x = gradient_checkpointing(&block, input, drop);
        model[1..]
            .iter()
            .fold(x, |x, linear| linear.forward(x).tanh())
            .mean()
    });
    assert!(matches!(result, Err(FusedError::RandomNumbers { .. })));
    assert_changed(&before, &fused.model(), |path| !path.starts_with("0."));
    // The message agrees with that.
    let message = result.unwrap_err().to_string();
    assert_says(&message, "were not updated");
    assert!(!message.contains("No parameter was updated"), "{message}");
    let mut updates = updates.lock().unwrap().clone();
    let found = updates.len();
    updates.sort_unstable();
    updates.dedup();
    assert_eq!(updates.len(), found, "{updates:?}");
}

#[test]
fn disturbed_block_repeats_its_mask_or_ends_step_on_cpu() {
    on_cpu(disturbed_block_repeats_its_mask_or_ends_step);
}

#[test]
fn concurrent_trainings_with_dropout_wait_on_cpu() {
    on_cpu(concurrent_trainings_with_dropout_wait);
}

#[test]
fn concurrent_trainings_of_two_kinds_wait_on_cpu() {
    on_cpu(concurrent_trainings_of_two_kinds_wait);
}

#[test]
fn model_that_draws_nothing_is_not_disturbed_on_cpu() {
    on_cpu(model_that_draws_nothing_is_not_disturbed);
}

#[test]
fn disturbed_exact_clipping_repeats_mask_or_ends_step_on_cpu() {
    on_cpu(disturbed_exact_clipping_repeats_mask_or_ends_step);
}

#[test]
fn disturbed_step_updates_once_on_cpu() {
    on_cpu(disturbed_step_updates_once);
}

#[test]
fn model_that_draws_first_without_lock_ends_step_on_cpu() {
    on_cpu(model_that_draws_first_without_lock_ends_step);
}

#[test]
fn draws_outside_of_blocks_wait_for_blocks_on_cpu() {
    on_cpu(draws_outside_of_blocks_wait_for_blocks);
}

#[test]
fn lazy_model_waits_for_block_of_another_training_on_cpu() {
    on_cpu(lazy_model_waits_for_block_of_another_training);
}
