//! Steps while another thread draws random numbers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::*;
use crate::{ALONE, Dropping, Last, Model, dropping, keep};

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while another thread repeatedly draws from the generator of `device`, the first time before it.
fn disturbed<R>(device: &Device, pause: Duration, work: impl FnOnce() -> R) -> R {
    let (done, device) = (AtomicBool::new(false), device.clone().inner());
    let has_drawn = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let draw =
                || drop(Tensor::<1>::random([3], Distribution::Default, &device).into_data());
            draw();
            has_drawn.wait();
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(pause);
                draw();
            }
        });
        has_drawn.wait();
        let _done = Done(&done);
        work()
    })
}

/// Trains a block with dropout and a loss that is linear in the weight. Its gradient is the factor of the forward pass,
/// and zero where the mask is. Returns the number of successful steps.
fn steps_with_the_mask_of_their_loss(device: &Device, steps: usize) -> usize {
    let seen = Last::default();
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init())
        .unwrap()
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
    let _alone = ALONE.lock();
    let well = [0, 1, 20, 1000].map(|pause| {
        let pause = Duration::from_micros(pause);
        disturbed(device, pause, || {
            steps_with_the_mask_of_their_loss(device, 25)
        })
    });
    assert!(well.iter().sum::<usize>() > 0);
}

fn concurrent_trainings_with_dropout_wait(device: &Device) {
    let _alone = ALONE.lock();
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
    let _alone = ALONE.lock();
    let x = Tensor::<3>::random([4, 5, 3], Distribution::Default, device);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let blocks = scope.spawn(|| {
            start.wait();
            steps_with_the_mask_of_their_loss(device, 50)
        });
        scope.spawn(|| {
            let mut fused =
                FusedOptimizer::new(Model::init(device), SgdConfig::new().init()).unwrap();
            start.wait();
            for _ in 0..25 {
                fused.step(1e-2, |model| model.loss(x.clone())).unwrap();
            }
        });
        assert_eq!(blocks.join().unwrap(), 50);
    });
}

/// The blocks of one training draw nothing, and the other training clips.
fn concurrent_trainings_of_two_kinds_wait(device: &Device) {
    let _alone = ALONE.lock();
    let start = Barrier::new(2);
    let init = || vec![LinearConfig::new(8, 8).init(device)];
    let initial = init();
    let ones = Tensor::<2>::ones([4, 8], device);
    let stock = train_stock(
        copy(&initial, init),
        &mut SgdConfig::new().init(),
        50,
        1e-2,
        |model: &Vec<Linear>, _| model[0].forward(ones.clone()).mean(),
    );
    let x = Tensor::<3>::random([4, 5, 3], Distribution::Default, device);
    thread::scope(|scope| {
        scope.spawn(|| {
            let model = copy(&initial, init);
            let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
            start.wait();
            for _ in 0..50 {
                let run = |linear: &Linear, x| linear.forward(x);
                fused
                    .step(1e-2, |model| {
                        gradient_checkpointing(&model[0], ones.clone(), run).mean()
                    })
                    .unwrap();
            }
            assert_equal_weights(&stock, &fused.model());
        });
        scope.spawn(|| {
            let config = FusedConfig::exact(1e-3);
            let mut fused = FusedOptimizer::new(Model::init(device), SgdConfig::new().init())
                .unwrap()
                .with_config(config)
                .unwrap();
            start.wait();
            for _ in 0..25 {
                fused
                    .step_repeatable(1e-2, |model| model.loss(x.clone()))
                    .unwrap();
            }
        });
    });
}

/// Runs `work` while the forward pass of another training that draws holds the lock of the generators.
fn while_locked<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let mut other = FusedOptimizer::new(dropping(device), SgdConfig::new().init()).unwrap();
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

/// A step in two passes begins without the lock, and gets no other one for its blocks: the second pass would need it, too.
fn draws_of_stranger_do_not_end_step_without_lock(device: &Device) {
    static IS_FIRST_RUN: AtomicBool = AtomicBool::new(false);
    let _alone = ALONE.lock();
    let block = |(weight, _): &Dropping, x: Tensor<1>| {
        if IS_FIRST_RUN.swap(false, Ordering::Relaxed) {
            let device = x.device().inner();
            let draw = || Tensor::<1>::random([3], Distribution::Default, &device).into_data();
            thread::scope(|scope| drop(scope.spawn(draw).join().unwrap()));
        }
        weight.val() * x
    };
    let loss =
        |model: &Dropping| gradient_checkpointing(model, Tensor::ones([64], device), block).sum();
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::exact(1e-3))
        .unwrap();
    fused.step_repeatable(0.1, loss).unwrap();
    let [locked, done] = [(); 2].map(|()| Barrier::new(2));
    thread::scope(|scope| {
        let other = Mutex::new(Some(scope.spawn(|| {
            let mut other = FusedOptimizer::new(dropping(device), SgdConfig::new().init()).unwrap();
            let step = other.step(0.0, |(weight, dropout)| {
                locked.wait();
                done.wait();
                dropout.forward(weight.val()).sum()
            });
            step.unwrap();
        })));
        locked.wait();
        let step = fused.step_repeatable(0.1, |model| {
            if let Some(other) = other.lock().unwrap().take() {
                done.wait();
                other.join().unwrap();
                IS_FIRST_RUN.store(true, Ordering::Relaxed);
            }
            loss(model)
        });
        step.unwrap();
    });
}

/// Constructs trainings of lazy models on other threads while a block with dropout runs for the first time.
fn lazy_model_waits_for_block_of_another_training(device: &Device) {
    static OTHERS: Mutex<Vec<thread::JoinHandle<()>>> = Mutex::new(Vec::new());
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let _alone = ALONE.lock();
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init()).unwrap();
    let block = |(weight, dropout): &Dropping, x: Tensor<1>| {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        if run.is_multiple_of(2) {
            let device = x.device().inner().autodiff();
            let other = thread::spawn(move || {
                let lazy = LinearConfig::new(64, 64).init(&device);
                let sgd = SgdConfig::new().init();
                match run {
                    0 => drop(FusedOptimizer::new(lazy, sgd).unwrap()),
                    _ => drop(FusedReplicas::new(lazy, sgd, [device]).unwrap()),
                }
            });
            OTHERS.lock().unwrap().push(other);
            thread::sleep(Duration::from_millis(20));
        }
        dropout.forward(weight.val() * x)
    };
    for _ in 0..3 {
        fused
            .step(0.1, |model| {
                gradient_checkpointing(model, Tensor::ones([64], device), block).sum()
            })
            .unwrap();
    }
    let others = std::mem::take(&mut *OTHERS.lock().unwrap());
    assert_eq!(others.len(), 3);
    for other in others {
        other.join().unwrap();
    }
}

/// Steps a model that drew nothing in its first step and now draws in `loss`, first without the lock and then with it.
fn begins_to_draw(device: &Device, loss: impl Fn(&Dropping, bool) -> Tensor<1>) {
    // A step in two passes begins with a seed, so it is observed to draw nothing.
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::exact(1e-3))
        .unwrap();
    let mut step = |draws| fused.step_repeatable(0.1, |model| loss(model, draws));
    step(false).unwrap();
    let error = while_locked(device, || step(true)).unwrap_err();
    assert_matches!(error, FusedError::RandomNumbers { .. });
    step(true).unwrap();
}

fn model_that_draws_first_without_lock_ends_step(device: &Device) {
    let _alone = ALONE.lock();
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
    let _alone = ALONE.lock();
    let init = || linears(4, 8, device);
    let initial = init();
    let x = Tensor::<2>::random([16, 8], Distribution::Default, device);
    let train = |recompute: bool| {
        let model = copy(&initial, init);
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::exact(1e-2))
            .unwrap();
        for _ in 0..20 {
            fused
                .step_repeatable(1e-2, |model| loss_of_layers(model, recompute, x.clone()))
                .unwrap();
        }
        fused.model()
    };
    let quiet = train(false);
    let disturbed = disturbed(device, Duration::ZERO, || train(true));
    assert_equal_weights(&quiet, &disturbed);
}

fn disturbed_exact_clipping_repeats_mask_or_ends_step(device: &Device) {
    let _alone = ALONE.lock();
    let max_norm = 1e-3;
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let mut well = 0;
    for pause in [0, 20, 1000, 30_000] {
        for _ in 0..10 {
            let before = Model::init(device);
            let mut fused = FusedOptimizer::new(before.clone(), SgdConfig::new().init())
                .unwrap()
                .with_config(FusedConfig::exact(max_norm))
                .unwrap();
            let step = disturbed(device, Duration::from_micros(pause), || {
                fused.step_repeatable(1.0, |model| model.loss(x.clone()))
            });
            let moved = distance(&before, &fused.model()) / max_norm;
            match step {
                Ok(_) => {
                    assert!((moved - 1.0).abs() < 1e-3, "{moved} of the maximum");
                    well += 1;
                }
                Err(FusedError::RandomNumbers { .. }) => assert_eq!(moved, 0.0),
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(well > 0);
}

/// A thread draws in the second run of the block in the pass that updates, when later layers have moved.
fn disturbed_step_updates_once(device: &Device) {
    let _alone = ALONE.lock();
    let updates = Arc::new(Mutex::new(Vec::new()));
    let updated = updates.clone();
    let notes = hook(move |it| {
        updated.lock().unwrap().push(it.path.to_string());
        Answer::Use
    });
    let mut fused = FusedOptimizer::new(linears(3, 8, device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::exact(1e-3))
        .unwrap()
        .with_hook(ParamGroup::all(), notes);
    let x = Tensor::<2>::random([4, 8], Distribution::Default, device);
    let inner = device.clone().inner();
    let second_runs = Arc::new(AtomicUsize::new(0));
    let before = fused.model();
    let result = fused.step_repeatable(1e-2, |model| {
        let block = (model[0].clone(), DropoutConfig::new(0.5).init());
        type Constants = Constant<(Device, Arc<AtomicUsize>)>;
        let drop = |block: &(Linear, Dropout), (x, constants): (Tensor<2>, Constants)| {
            let ((linear, dropout), Constant((device, second_runs))) = (block, constants);
            let is_second = linear.weight.val().is_tracked();
            // The first of them is in the measuring pass.
            if is_second && second_runs.fetch_add(1, Ordering::Relaxed) > 0 {
                // As another thread would.
                Tensor::<1>::random([3], Distribution::Default, &device);
            }
            dropout.forward(linear.forward(x))
        };
        let input = (x.clone(), Constant((inner.clone(), second_runs.clone())));
        let x = gradient_checkpointing(&block, input, drop);
        loss_of_layers(&model[1..], false, x)
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

on_every_cpu_backend!(
    disturbed_block_repeats_its_mask_or_ends_step,
    concurrent_trainings_with_dropout_wait,
    concurrent_trainings_of_two_kinds_wait,
    model_that_draws_nothing_is_not_disturbed,
    disturbed_exact_clipping_repeats_mask_or_ends_step,
    disturbed_step_updates_once,
    model_that_draws_first_without_lock_ends_step,
    draws_of_stranger_do_not_end_step_without_lock,
    draws_outside_of_blocks_wait_for_blocks,
    lazy_model_waits_for_block_of_another_training,
);
