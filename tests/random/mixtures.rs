//! Trainings of all kinds at the same time, in every place where a program may run one. Each computes what it computes alone.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use burn::nn::Initializer;
use rand::prelude::*;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use crate::ALONE;
use crate::common::*;
use crate::side_by_side::{PLACES, Place, train_alone};

/// Large enough that `flex` computes products on several threads.
const WIDTH: usize = 208;
const STEPS: usize = 2;
const MIXTURES: u64 = 5;

/// Longer than a mixture takes.
const LIMIT: Duration = Duration::from_secs(120);

type Weights = Vec<(String, TensorData)>;

fn init(device: &Device) -> Vec<Linear> {
    let value = Initializer::Constant { value: 0.01 };
    let layer = LinearConfig::new(WIDTH, WIDTH).with_initializer(value);
    (0..3).map(|_| layer.init(device)).collect()
}

fn batch(device: &Device) -> Tensor<2> {
    let values = Tensor::<1, Int>::arange(0..(WIDTH * WIDTH) as i64, device).float();
    values.sin().reshape([WIDTH, WIDTH])
}

/// Kinds of training.
#[derive(Clone, Debug)]
enum Kind {
    Stock,
    Fused(FusedConfig, StateFormat),
    InBlocks(FusedConfig),
    /// An estimate, a dry run, a hook, and a record that is loaded into a second training.
    Resumed,
    Replicas(Sharding),
    /// A checkpoint that another training loads.
    Saved,
    /// A plan, and its training.
    Planned,
    /// Dropout, with exact clipping or without. The gradients are those of the loss, or an error says why they can't be.
    Draws(Place, bool),
}

fn kinds() -> Vec<Kind> {
    let averaging = WeightAveragingConfig::new();
    let offload = |mode| FusedConfig::offload(offload_from_flex(mode));
    let plain = FusedConfig::new();
    let mut kinds = vec![
        Kind::Stock,
        Kind::Fused(plain.clone(), StateFormat::Full),
        Kind::Fused(plain.clone(), StateFormat::Bits4),
        Kind::Fused(FusedConfig::exact(1e-3), StateFormat::Full),
        Kind::Fused(FusedConfig::lagged(1e-3), StateFormat::Bits8),
        Kind::Fused(FusedConfig::averaging(averaging), StateFormat::Full),
        Kind::InBlocks(plain),
        Kind::InBlocks(FusedConfig::exact(1e-3)),
        Kind::Resumed,
        Kind::Replicas(Sharding::State),
        Kind::Replicas(Sharding::Full),
    ];
    kinds.extend([Kind::Saved, Kind::Planned]);
    kinds.extend(OFFLOADS.map(|mode| Kind::InBlocks(offload(mode))));
    let drawing = product(PLACES, [false, true]).into_iter();
    kinds.extend(drawing.map(|(place, clips)| Kind::Draws(place, clips)));
    kinds
}

/// Trains a model, and returns its weights.
fn train(kind: &Kind, is_alone: bool, device: &Device) -> Result<Weights, FusedError> {
    let optimizer = AdamWConfig::new().init();
    let loss = |model: &Vec<Linear>, x| loss_of_layers(model, false, x);
    let in_blocks = |model: &Vec<Linear>, x| loss_of_layers(model, true, x);
    let (model, x) = (init(device), batch(device));
    let trained = match kind {
        Kind::Stock => {
            let (mut model, mut optimizer) = (model, optimizer);
            for _ in 0..STEPS {
                let gradients = loss(&model, x.clone()).backward();
                let gradients = GradientsParams::from_grads(gradients, &model);
                model = optimizer.step(1e-3, model, gradients);
            }
            model
        }
        Kind::Fused(config, states) => {
            let optimizer = optim::AdamWConfig::new().with_state_format(*states);
            let fused = FusedOptimizer::new(model, optimizer.init())?;
            let mut fused = fused.with_config(config.clone())?;
            for _ in 0..STEPS {
                fused.step_repeatable(1e-3, |model| loss(model, x.clone()))?;
            }
            match config.averaging {
                None => fused.model(),
                Some(_) => fused.averaged(),
            }
        }
        Kind::InBlocks(config) => {
            let fused = FusedOptimizer::new(model, optimizer)?;
            let mut fused = fused.with_config(config.clone())?;
            for _ in 0..STEPS {
                fused.step_repeatable(1e-3, |model| in_blocks(model, x.clone()))?;
            }
            fused.model()
        }
        Kind::Resumed => {
            let estimate = MemoryEstimate::new(&model, &optimizer);
            assert_eq!(estimate.optimizer_state, 2 * estimate.parameters);
            let fused = FusedOptimizer::new(model, optimizer)?;
            let mut fused = fused.with_hook(ParamGroup::all(), hook(|_| Answer::Scale(0.5)));
            fused.dry_run(|model| loss(model, x.clone()))?;
            fused.step(1e-3, |model| loss(model, x.clone()))?;
            let optimizer = AdamWConfig::new().init();
            let mut resumed = FusedOptimizer::new(fused.model(), optimizer)?;
            resumed.load_record(reread(fused.to_record()))?;
            for _ in 1..STEPS {
                resumed.step(1e-3, |model| in_blocks(model, x.clone()))?;
            }
            resumed.model()
        }
        Kind::Replicas(sharding) => {
            let config = FusedConfig::sharded(*sharding);
            let devices = [device.clone(), device.clone()];
            let mut fused = FusedReplicas::new_with_config(model, optimizer, devices, config)?;
            for _ in 0..STEPS {
                let batches = [x.clone(), x.clone() + 1.0];
                fused.step(1e-3, batches, move |model: &Vec<Linear>, x| {
                    loss_of_layers(model, false, x)
                })?;
            }
            fused.model()
        }
        Kind::Saved => {
            let folder = tempfile::tempdir().unwrap();
            let checkpoint = Checkpoint::at(folder.path());
            let mut fused = FusedOptimizer::new(model, optimizer)?;
            fused.step(1e-3, |model| loss(model, x.clone()))?;
            checkpoint.save(&fused, &Progress::new(1)).unwrap();
            let optimizer = AdamWConfig::new().init();
            let mut resumed = FusedOptimizer::new(init(device), optimizer)?;
            checkpoint.load::<()>(&mut resumed).unwrap();
            for _ in 1..STEPS {
                resumed.step(1e-3, |model| in_blocks(model, x.clone()))?;
            }
            resumed.model()
        }
        Kind::Planned => {
            let planner = Planner::new(|| init(device), optim::AdamWConfig::new());
            let planner = planner.with_order(Technique::SAME_PRECISION);
            let batch = |items: usize| x.clone().slice(0..items.min(WIDTH));
            let of_batch = |model: &Vec<Linear>, items| in_blocks(model, batch(items));
            let mut fused = match planner.plan(of_batch, usize::MAX) {
                Ok(plan) => plan.fuse(|| init(device)).unwrap(),
                // One planner runs at a time.
                Err(PlanError::Memory(_)) if !is_alone => {
                    FusedOptimizer::new(model, optim::AdamWConfig::new().init())?
                }
                Err(error) => panic!("{error}"),
            };
            for _ in 0..STEPS {
                fused.step(1e-3, |model| in_blocks(model, x.clone()))?;
            }
            fused.model()
        }
        Kind::Draws(place, clips) => {
            match train_alone(device, *place, *clips) {
                // In a mixture, those on a pool draw without the lock.
                Err(FusedError::RandomNumbers { .. } | FusedError::RandomNumbersLocked { .. })
                    if !is_alone => {}
                result => result?,
            }
            model
        }
    };
    Ok(weights(&trained))
}

/// Runs all trainings at the same time, and returns the weights of each.
fn mixture(
    kinds: &[Kind],
    seed: u64,
    device: &Device,
) -> Vec<(usize, Result<Weights, FusedError>)> {
    let mut random = StdRng::seed_from_u64(seed);
    let threads = [1, 2, 3, 4, 8][seed as usize % 5];
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    let mut places: [Vec<usize>; 6] = Default::default();
    for index in 0..kinds.len() {
        places[random.random_range(0..6)].push(index);
    }
    let (sender, ended) = channel();
    let run = |index: usize| {
        sender
            .send((index, train(&kinds[index], false, device)))
            .unwrap()
    };
    let [here, on_threads, installed, parallel, scoped, spawned] = &places;
    for index in spawned.iter().copied() {
        let (kind, sender, device) = (kinds[index].clone(), sender.clone(), device.clone());
        // On the pool that `flex` computes on.
        rayon::spawn(move || sender.send((index, train(&kind, false, &device))).unwrap());
    }
    thread::scope(|scope| {
        let (run, pool) = (&run, &pool);
        for index in on_threads {
            scope.spawn(|| run(*index));
        }
        scope.spawn(|| {
            installed
                .iter()
                .for_each(|index| pool.install(|| run(*index)))
        });
        scope.spawn(|| pool.install(|| parallel.par_iter().for_each(|index| run(*index))));
        scope.spawn(|| {
            rayon::scope(|scope| {
                for index in scoped {
                    scope.spawn(|_| run(*index));
                }
            });
        });
        here.iter().for_each(|index| run(*index));
    });
    let ended = kinds.iter().map(|_| ended.recv_timeout(LIMIT).unwrap());
    ended.collect()
}

fn mixed_trainings_equal_trainings_alone(device: &Device) {
    let _alone = ALONE.lock();
    let kinds = kinds();
    let alone: Vec<_> = kinds
        .iter()
        .map(|kind| train(kind, true, device).unwrap())
        .collect();
    let in_blocks = alone
        .iter()
        .zip(&kinds)
        .find(|(_, kind)| matches!(kind, Kind::InBlocks(_)));
    assert_eq!(&alone[0], in_blocks.unwrap().0, "stock and in blocks");
    for seed in 0..MIXTURES {
        let (sender, ended) = channel();
        let (running, device) = (kinds.clone(), device.clone());
        thread::spawn(move || sender.send(mixture(&running, seed, &device)));
        for (index, found) in ended.recv_timeout(LIMIT).expect("it ends") {
            let found = found.unwrap_or_else(|error| panic!("{:?}: {error}", kinds[index]));
            assert!(found == alone[index], "mixture {seed}: {:?}", kinds[index]);
        }
    }
}

on_backend!(flex(): mixed_trainings_equal_trainings_alone);
