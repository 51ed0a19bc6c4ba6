//! Trainings on threads of rayon pools. A thread that waits for a parallel operation may run another training meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use burn::nn::Initializer;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::ALONE;
use crate::common::*;

type Layer = (Linear, Dropout);
type Layers = Vec<Layer>;

/// Large enough that `flex` computes products on several threads.
const WIDTH: usize = 224;
const STEPS: usize = 3;

/// Longer than every training of this file takes.
const LIMIT: Duration = Duration::from_secs(60);

fn pool(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
}

fn layer(width: usize, dropout: f64, device: &Device) -> Layer {
    let ones = Initializer::Constant { value: 0.01 };
    let linear = LinearConfig::new(width, width).with_initializer(ones);
    (linear.init(device), DropoutConfig::new(dropout).init())
}

fn layers(dropout: f64, device: &Device) -> Layers {
    (0..3).map(|_| layer(WIDTH, dropout, device)).collect()
}

fn forward((linear, dropout): &Layer, x: Tensor<2>) -> Tensor<2> {
    dropout.forward(linear.forward(x).tanh())
}

fn loss(model: &Layers, in_blocks: bool, x: Tensor<2>) -> Tensor<1> {
    let run = |x, layer| match in_blocks {
        true => gradient_checkpointing(layer, x, forward),
        false => forward(layer, x),
    };
    model.iter().fold(x, run).mean()
}

/// Trains a model, and returns its weights.
fn train(
    dropout: f64,
    in_blocks: bool,
    config: &FusedConfig,
    device: &Device,
) -> Result<Vec<(String, TensorData)>, FusedError> {
    let optimizer = AdamWConfig::new().init();
    let mut fused = FusedOptimizer::new(layers(dropout, device), optimizer)?;
    fused = fused.with_config(config.clone())?;
    for _ in 0..STEPS {
        let x = Tensor::ones([WIDTH, WIDTH], device);
        fused.step_repeatable(1e-3, |model| loss(model, in_blocks, x.clone()))?;
    }
    Ok(weights(&fused.model()))
}

/// Trainings of one kind on all threads of a pool, and one on this thread.
fn trainings_on_thread_and_on_pool_end(device: &Device) {
    let _alone = ALONE.lock();
    let configs = [FusedConfig::new(), FusedConfig::exact(1e-3)];
    for (threads, (in_blocks, config)) in product([1, 2, 3, 4, 8], product([false, true], configs))
    {
        let expected = train(0.0, in_blocks, &config, device).unwrap();
        let (sender, ended) = channel();
        let pool = pool(threads);
        for _ in 0..=threads {
            let (sender, device, config) = (sender.clone(), device.clone(), config.clone());
            pool.spawn(move || {
                sender
                    .send(train(0.0, in_blocks, &config, &device))
                    .unwrap()
            });
        }
        let here = train(0.0, in_blocks, &config, device);
        assert_eq!(here.unwrap(), expected);
        for _ in 0..=threads {
            assert_eq!(ended.recv_timeout(LIMIT).unwrap().unwrap(), expected);
        }
    }
}

/// Trainings with dropout on a thread of the program and on a pool end, if only with an error of the pool's.
fn dropout_on_pool_does_not_block_thread(device: &Device) {
    let _alone = ALONE.lock();
    for in_blocks in [false, true] {
        let (sender, ended) = channel();
        let pool = pool(2);
        for _ in 0..3 {
            let (sender, device) = (sender.clone(), device.clone());
            pool.spawn(move || {
                let trained = train(0.1, in_blocks, &FusedConfig::new(), &device);
                sender.send(trained).unwrap();
            });
        }
        let here = train(0.1, false, &FusedConfig::new(), device);
        assert!(here.is_ok(), "{here:?}");
        for _ in 0..3 {
            match ended.recv_timeout(LIMIT).unwrap() {
                Err(FusedError::RandomNumbers { .. }) => assert!(in_blocks),
                Err(error) => assert_matches!(error, FusedError::RandomNumbersLocked { .. }),
                Ok(_) => {}
            }
        }
    }
}

/// Many trainings on a pool. Each training runs its blocks on the same pool.
fn blocks_on_pool_of_trainings_on_pool_end(device: &Device) {
    let _alone = ALONE.lock();
    let blocks = |model: &Layers, x: &Tensor<2>| {
        let context = StepContext::current();
        let block = |layer: &Layer| gradient_checkpointing(layer, x.clone(), forward);
        let outputs = model.par_iter().map(|layer| match &context {
            Some(context) => context.enter(|| block(layer)),
            None => block(layer),
        });
        Tensor::cat(outputs.collect(), 0).mean()
    };
    let train = |fused: bool| {
        let (mut model, x) = (layers(0.0, device), Tensor::ones([WIDTH, WIDTH], device));
        let mut optimizer = AdamWConfig::new().init();
        if fused {
            let mut fused = FusedOptimizer::new(model, optimizer).unwrap();
            (0..STEPS).for_each(|_| drop(fused.step(1e-3, |model| blocks(model, &x)).unwrap()));
            return weights(&fused.model());
        }
        for _ in 0..STEPS {
            let gradients = GradientsParams::from_grads(blocks(&model, &x).backward(), &model);
            model = optimizer.step(1e-3, model, gradients);
        }
        weights(&model)
    };
    let expected = train(false);
    let pool = pool(4);
    // Stock trainings in between, whose blocks are no blocks of a step.
    let found: Vec<_> = pool.install(|| {
        let kinds = (0..12).into_par_iter();
        kinds.map(|training| train(training % 3 != 0)).collect()
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

/// Runs two trainings on the only thread of a pool. While the first waits for a parallel operation, its thread runs the second one.
fn nested(
    device: &Device,
    first: impl FnOnce(&dyn Fn()) -> Result<(), FusedError> + Send,
    second: impl FnOnce() -> Result<(), FusedError> + Send,
) -> [Result<(), FusedError>; 2] {
    device.seed(1);
    let [mut of_first, mut of_second] = [const { None }; 2];
    let yields = AtomicBool::new(true);
    pool(1).scope(|scope| {
        let (of_first, of_second, yields) = (&mut of_first, &mut of_second, &yields);
        // The last one runs first.
        scope.spawn(move |_| *of_second = Some(second()));
        scope.spawn(move |_| {
            let wait = || {
                if yields.swap(false, Ordering::SeqCst) {
                    rayon::yield_now();
                }
            };
            *of_first = Some(first(&wait));
        });
    });
    [of_first, of_second].map(Option::unwrap)
}

fn small(device: &Device) -> (Layer, Tensor<2>) {
    (layer(8, 0.5, device), Tensor::ones([4, 8], device))
}

fn training_within_waiting_training_is_its_own(device: &Device) {
    let _alone = ALONE.lock();
    let plain = || {
        let (model, x) = small(device);
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
        fused.step(1e-3, |model| forward(model, x).mean()).map(drop)
    };
    let replicas = || {
        let (model, x) = small(device);
        let devices = [device.clone(), device.clone()];
        let mut fused = FusedReplicas::new(model, SgdConfig::new().init(), devices)?;
        let batches = [x.clone(), x];
        let step = fused.step(1e-3, batches, |model: &Layer, x| forward(model, x).mean());
        step.map(drop)
    };
    let outer = |wait: &dyn Fn()| {
        let (model, x) = small(device);
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
        let step = fused.step(1e-3, |(linear, dropout): &Layer| {
            let x = linear.forward(x);
            wait();
            dropout.forward(x).mean()
        });
        step.map(drop)
    };
    for second in [&plain as &(dyn Fn() -> _ + Sync), &replicas] {
        let ended = nested(device, outer, second);
        assert_eq!(ended, [Ok(()), Ok(())]);
    }
}

/// A model whose blocks have drawn is refused where it can't have the lock, and trains on a thread of its own.
fn drawing_block_without_lock_is_refused_by_name(device: &Device) {
    let _alone = ALONE.lock();
    let (model, x) = small(device);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    let mut step = || {
        let step = fused.step(1e-3, |model| {
            gradient_checkpointing(model, x.clone(), forward).mean()
        });
        (step.map(drop), weights(&fused.model()))
    };
    let (first, before) = step();
    first.unwrap();
    let [locked, ended] = [(); 2].map(|()| std::sync::Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (model, x) = small(device);
            let mut other = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
            other
                .step(1e-3, |model| {
                    locked.wait();
                    ended.wait();
                    forward(model, x).mean()
                })
                .unwrap();
        });
        locked.wait();
        let (refused, after) = pool(1).install(&mut step);
        ended.wait();
        let error = refused.unwrap_err();
        assert_matches!(error, FusedError::RandomNumbersLocked { .. });
        assert_says(&error.to_string(), "Linear");
        assert_says(&error.to_string(), "std::thread::spawn");
        assert_eq!(before, after);
    });
    let (advised, after) = thread::scope(|scope| scope.spawn(step).join().unwrap());
    advised.unwrap();
    assert!(before != after);
}

/// Creates a training of two ranks with dropout, and a batch.
fn two_ranks(device: &Device) -> (FusedReplicas<Layer>, Tensor<2>) {
    let (model, x) = small(device);
    let devices = [device.clone(), device.clone()];
    let fused = FusedReplicas::new(model, SgdConfig::new().init(), devices);
    (fused.unwrap(), x)
}

/// Each rank runs blocks with dropout on two threads of its closure.
fn blocks_on_threads_of_ranks_draw_in_turn(device: &Device) {
    let _alone = ALONE.lock();
    let (mut fused, x) = two_ranks(device);
    for _ in 0..10 {
        let batches = [x.clone(), x.clone()];
        let step = fused.step(1e-3, batches, |model: &Layer, x: Tensor<2>| {
            let context = StepContext::current().unwrap();
            let block = |x| context.enter(|| gradient_checkpointing(model, x, forward));
            thread::scope(|scope| {
                let threads = [0, 1].map(|_| scope.spawn(|| block(x.clone())));
                let [a, b] = threads.map(|thread| thread.join().unwrap());
                (a + b).mean()
            })
        });
        step.unwrap();
    }
}

/// The threads of ranks wait for each other, also if a thread of a pool calls the step.
fn blocks_of_ranks_draw_in_turn_on_pool(device: &Device) {
    let _alone = ALONE.lock();
    let (mut fused, x) = two_ranks(device);
    let mut step = || {
        let batches = [x.clone(), x.clone()];
        let step = fused.step(1e-3, batches, |model: &Layer, x: Tensor<2>| {
            gradient_checkpointing(model, x, forward).mean()
        });
        step.unwrap();
    };
    step();
    pool(2).install(|| (0..30).for_each(|_| step()));
    (0..3).for_each(|_| step());
}

/// The closure of a step waits for a step of a model that draws, on another thread.
fn step_awaited_in_closure_of_another_is_an_error(device: &Device) {
    let _alone = ALONE.lock();
    let training = || {
        let fused = FusedOptimizer::new(small(device).0, SgdConfig::new().init()).unwrap();
        fused.with_config(FusedConfig::exact(1e-3)).unwrap()
    };
    let x = small(device).1;
    let step = |fused: &mut FusedOptimizer<Layer>, within: &dyn Fn()| {
        let step = fused.step_repeatable(1e-3, |model| {
            within();
            forward(model, x.clone()).mean()
        });
        step.map(drop)
    };
    let (mut outer, inner) = (training(), std::sync::Mutex::new(training()));
    let step_inner = || step(&mut inner.lock().unwrap(), &|| ());
    step_inner().unwrap();
    let (start, awaited) = (Instant::now(), std::sync::OnceLock::new());
    let wait = || {
        awaited.get_or_init(|| thread::scope(|scope| scope.spawn(step_inner).join().unwrap()));
    };
    step(&mut outer, &wait).unwrap();
    assert!(start.elapsed() < LIMIT);
    let error = awaited.into_inner().unwrap().unwrap_err();
    assert_matches!(error, FusedError::RandomNumbersLocked { .. });
    assert_says(&error.to_string(), "call the other step before or after it");
    step_inner().unwrap();
}

/// The closure of a rank needs the thread that waits for the ranks.
fn replicas_whose_closure_needs_waiting_thread_of_pool_end(device: &Device) {
    let _alone = ALONE.lock();
    let (mut fused, x) = two_ranks(device);
    let pool = std::sync::Arc::new(pool(1));
    let of_closure = pool.clone();
    in_time(move || {
        pool.install(|| {
            let loss = move |model: &Layer, x: Tensor<2>| {
                of_closure.install(|| ());
                forward(model, x).mean()
            };
            fused.step(1e-3, [x.clone(), x], loss).map(drop)
        })
        .unwrap();
    });
}

on_backend!(flex():
    replicas_whose_closure_needs_waiting_thread_of_pool_end,
    trainings_on_thread_and_on_pool_end,
    dropout_on_pool_does_not_block_thread,
    blocks_on_pool_of_trainings_on_pool_end,
    training_within_waiting_training_is_its_own,
    drawing_block_without_lock_is_refused_by_name,
    blocks_on_threads_of_ranks_draw_in_turn,
    blocks_of_ranks_draw_in_turn_on_pool,
    step_awaited_in_closure_of_another_is_an_error
);
