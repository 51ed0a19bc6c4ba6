//! Repeated steps, failures, exports and loads leave no bytes behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backburn::optim::compact_records;

use super::*;

/// Panics if `runs` runs of `work` leave more than `most` bytes. The `few` runs before may leave bytes.
#[track_caller]
fn assert_no_growth(name: &str, few: usize, runs: usize, most: usize, mut work: impl FnMut()) {
    (0..few).for_each(|_| work());
    let before = BYTES.current_usage();
    (0..runs).for_each(|_| work());
    let left = BYTES.current_usage().saturating_sub(before);
    assert!(left < most, "{name}: {left} bytes after {runs} runs");
}

/// Less than two words per step, so any leak of a node or of a map entry exceeds it. Threads sometimes allocate a
/// little.
const MOST: usize = 16 * 500;

#[test]
fn steps_leave_no_bytes() {
    alone!();
    let fused =
        || FusedOptimizer::new(Mlp::init(3, 4, &device()), AdamConfig::new().init()).unwrap();
    let reads_more = |model: &Mlp, x: Tensor<2>| {
        for layer in &model.layers {
            // Read, alone and in an operation, but not part of the loss.
            let _ = layer.expand.weight.val();
            let _ = layer.contract.forward(layer.expand.forward(x.clone()));
        }
        model.layers[1].expand.forward(x).mean()
    };
    for (name, loss) in [
        ("all used", Mlp::loss as fn(&Mlp, Tensor<2>) -> Tensor<1>),
        ("read and not used", reads_more),
    ] {
        let mut fused = fused();
        let step = || drop(fused.step(1e-3, |model| loss(model, x(4))).unwrap());
        assert_no_growth(name, 20, 500, MOST, step);
    }
    for offload in offload::MODES {
        let config = FusedConfig::offload(OffloadConfig::new(offload).with_min_elements(5));
        let mut fused = fused().with_config_on(config, &other()).unwrap();
        let step = || {
            let x = Tensor::random([4, 4], Distribution::Default, &other());
            fused.step(1e-3, |model| model.recomputed_loss(x)).unwrap();
        };
        assert_no_growth(&format!("{offload:?}"), 20, 500, MOST, step);
    }
    for sharding in [Sharding::State, Sharding::Full] {
        let mut fused = replicas::replicas(3, 2, 4, sharding);
        let step = || {
            let loss = |model: &Mlp, x| model.recomputed_loss(x);
            fused.step(1e-3, vec![x(4); 3], loss).unwrap();
        };
        // Tables of Rust's own library sometimes grow.
        assert_no_growth(&format!("{sharding:?}"), 50, 500, 20_000, step);
    }
}

/// Each training has its own background threads.
#[test]
fn trainings_on_rayon_thread_leave_no_bytes() {
    alone!();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let pool = pool.unwrap();
    let step_of_replicas = || {
        let mut fused = replicas::replicas(2, 1, 4, Sharding::State);
        fused
            .step(1e-3, vec![x(4); 2], |model: &Mlp, x| model.loss(x))
            .unwrap();
    };
    let step_with_offload = || {
        let offload = OffloadConfig::new(Offload::Updates).with_min_elements(1);
        let model = Mlp::init(1, 4, &device());
        let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
        let mut fused = fused
            .with_config_on(FusedConfig::offload(offload), &other())
            .unwrap();
        let x = Tensor::ones([4, 4], &other());
        fused.step(1e-3, |model: &Mlp| model.loss(x)).unwrap();
    };
    for (name, train) in [
        ("replicas", &step_of_replicas as &(dyn Fn() + Sync)),
        ("offload", &step_with_offload),
    ] {
        let train = || {
            pool.install(train);
            // The background threads end by themselves.
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        // A pool takes 7 kB. Of a dropped one, 2 kB wait for the next collection by its library.
        assert_no_growth(name, 20, 60, 200 * 1024, train);
    }
}

/// Every 33rd change drops the groups of removed parameters.
#[test]
fn replaced_layer_leaves_no_bytes() {
    alone!();
    type Net = Vec<Linear>;
    let layer = |device: &Device| -> Linear { LinearConfig::new(4, 4).init(device) };
    let lora = || Lora::new(2, 4.0);
    let plain: &dyn Fn(Net) -> Net = &|model| model;
    let frozen: &dyn Fn(Net) -> Net = &|model| model.freeze();
    let adapted: &dyn Fn(Net) -> Net = &|model| model.apply_lora(lora());
    let quantized: &dyn Fn(Net) -> Net =
        &|model| model.apply_reparameterization(QuantizedLora::new(lora(), BaseFormat::Bits4));
    let offload = OffloadConfig::new(Offload::States).with_min_elements(1);
    let offload = FusedConfig::offload(offload);
    let averaging = FusedConfig::new().with_averaging(Some(WeightAveragingConfig::new()));
    let config = FusedConfig::new();
    for (name, change, config, device) in [
        ("trained", plain, &config, device()),
        ("frozen", frozen, &config, device()),
        ("with an adapter", adapted, &config, device()),
        ("with an adapter on 4 bits", quantized, &config, device()),
        ("with offloaded states", plain, &offload, other()),
        ("with averages", plain, &averaging, device()),
    ] {
        let x = Tensor::<2>::ones([2, 4], &device);
        let first = change(vec![layer(&device)]);
        let model = [first, vec![layer(&device)]].concat();
        let fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
        let mut fused = fused.with_config_on(config.clone(), &device).unwrap();
        let replace = || {
            fused
                .step(1e-3, |model: &Net| {
                    let run = |x, layer: &Linear| layer.forward(x);
                    model.iter().fold(x.clone(), run).mean()
                })
                .unwrap();
            fused
                .change_model(|model| {
                    let first = change(vec![layer(&device)]);
                    [first, model[1..].to_vec()].concat()
                })
                .unwrap();
        };
        assert_no_growth(name, 3 * 33, 12 * 33, MOST, replace);
    }
}

/// Burn's optimizer can't remove a parameter group.
#[test]
fn changes_of_config_leave_no_bytes() {
    alone!();
    let x = x(4);
    let loss = |model: &Mlp| model.loss(x.clone());
    let step = |fused: &mut FusedOptimizer<Mlp>| drop(fused.step_repeatable(1e-3, loss).unwrap());
    let averaging = FusedConfig::new().with_averaging(Some(WeightAveragingConfig::new()));
    let scaling = FusedConfig::new().with_loss_scaling(Some(LossScalingConfig::new()));
    let both = FusedConfig::lagged(1.0).with_averaging(Some(WeightAveragingConfig::new()));
    for (name, configs) in [
        ("averages", vec![averaging.clone()]),
        ("loss scaling", vec![scaling.clone()]),
        (
            "in turn",
            vec![averaging, FusedConfig::new(), scaling, both],
        ),
    ] {
        for through_parts in [false, true] {
            let fused =
                FusedOptimizer::new(Mlp::init(2, 4, &device()), AdamConfig::new().init()).unwrap();
            let mut held = Some(fused);
            let change = || {
                for config in &configs {
                    let mut fused = held.take().unwrap();
                    if through_parts {
                        let (model, optimizer) = fused.into_parts();
                        fused = FusedOptimizer::new(model, optimizer).unwrap();
                    }
                    let mut fused = fused.with_config(config.clone()).unwrap();
                    step(&mut fused);
                    held = Some(fused);
                }
            };
            assert_no_growth(name, 20, 200, MOST, change);
        }
    }
}

/// The step fails in the optimizer, in a backward pass of the closure and after it, and in the second run of a block. Recorded
/// nodes are released.
#[test]
fn failed_steps_leave_no_bytes() {
    alone!();
    let x = x(64);
    type Fail<'a> = &'a dyn Fn(&mut FusedOptimizer<Mlp>) -> bool;
    let in_second_run: Fail<'_> = &|fused| {
        let step = || {
            fused
                .step(1e-3, |model| {
                    type HasRun = Constant<Arc<AtomicBool>>;
                    let once = |model: &Mlp, (x, Constant(has_run)): (_, HasRun)| {
                        assert!(!has_run.swap(true, Ordering::Relaxed), "once");
                        model.loss(x)
                    };
                    let input = (x.clone(), Constant(Arc::default()));
                    gradient_checkpointing(model, input, once) + model.loss(x.clone())
                })
                .unwrap()
        };
        catch_unwind(AssertUnwindSafe(step)).is_err()
    };
    let after_backward: Fail<'_> = &|fused| {
        let step = || {
            fused
                .step_with_backward(1e-3, |model| {
                    let gradients = model.loss(x.clone()).backward();
                    assert!(x.dims()[0] == 0, "after the backward pass");
                    ((), GradientsParams::from_grads(gradients, model))
                })
                .unwrap();
        };
        catch_unwind(AssertUnwindSafe(step)).is_err()
    };
    let not_tracked: Fail<'_> = &|fused| {
        let step = fused.step(1e-3, |model| model.loss(x.clone()).detach());
        step.is_err()
    };
    let backward_within: Fail<'_> = &|fused| {
        let step = || {
            fused
                .step(1e-3, |model| {
                    let loss = model.loss(x.clone());
                    drop(loss.backward());
                    loss
                })
                .unwrap()
        };
        catch_unwind(AssertUnwindSafe(step)).is_err()
    };
    for (name, fail) in [
        ("backward pass within", backward_within),
        ("in the second run of a block", in_second_run),
        ("after the backward pass", after_backward),
        ("not tracked", not_tracked),
    ] {
        let model = Mlp::init(4, 64, &device());
        let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
        let failures = || {
            assert!((0..10).all(|_| fail(&mut fused)));
            for _ in 0..2 {
                fused.step(1e-3, |model| model.loss(x.clone())).unwrap();
            }
        };
        assert_no_growth(name, 1, 2, 4096, failures);
    }
}

#[test]
fn exports_and_loads_without_step_leave_no_bytes() {
    alone!();
    let x = x(2);
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let config = FusedConfig::lagged(1.0).with_averaging(Some(WeightAveragingConfig::new()));
    type Export<'a> = &'a dyn Fn(&mut FusedOptimizer<Mlp>);
    let load: Export<'_> = &|fused| drop(checkpoint.load::<()>(fused).unwrap());
    // Each of the first calls leaves about 100 kB, each of the last about 4 kB per parameter.
    let exports: [(&str, Export<'_>, usize); 6] = [
        ("model", &|fused| drop(fused.model()), 1_000_000),
        ("valid", &|fused| drop(fused.valid()), 1_000_000),
        ("averaged", &|fused| drop(fused.averaged()), 1_000_000),
        (
            "full",
            &|fused| drop(fused.full_precision_model()),
            1_000_000,
        ),
        (
            "save",
            &|fused| checkpoint.save(fused, &Progress::new(1)).unwrap(),
            1_000_000,
        ),
        ("load", load, 64 * 1024),
    ];
    for config in [FusedConfig::new(), config] {
        let model = Mlp::init(25, 2, &device());
        let fused = FusedOptimizer::new(model, backburn::optim::AdamWConfig::new().init()).unwrap();
        let mut fused = fused.with_config(config).unwrap();
        fused.step(1e-3, |model| model.loss(x.clone())).unwrap();
        for (name, export, most) in exports {
            assert_no_growth(name, 2, 40, most, || export(&mut fused));
        }
    }
}

/// Bytes since `before` in multiples of the parameters' bytes, after enough steps that states are written in place.
fn held(fused: &mut FusedOptimizer<Mlp>, before: usize) -> f64 {
    let x = x(WIDTH);
    for _ in 0..3 {
        fused.step(1e-3, |model| model.loss(x.clone())).unwrap();
    }
    multiple(BYTES.current_usage() - before)
}

#[test]
fn loaded_training_holds_what_saved_one_holds() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::at(folder.path());
    let ours = backburn::optim::AdamWConfig::new();
    let codes = ours.clone().with_state_format(StateFormat::Bits8).init();
    type Load<'a> = &'a dyn Fn(&mut FusedOptimizer<Mlp>);
    let loads: [Load<'_>; 3] = [
        &|fused| fused.load_record(fused.to_record()).unwrap(),
        &|fused| {
            fused
                .load_record(compact_records(|| fused.to_record()))
                .unwrap()
        },
        &|fused| {
            checkpoint.save(fused, &Progress::new(1)).unwrap();
            checkpoint.load::<()>(fused).unwrap();
        },
    ];
    for optimizer in [ours.init(), codes, AdamWConfig::new().init()] {
        // Threads of the backend have their own buffers.
        held(
            &mut FusedOptimizer::new(mlp(), optimizer.clone()).unwrap(),
            0,
        );
        for (index, load) in loads.into_iter().enumerate() {
            let before = BYTES.current_usage();
            let mut fused = FusedOptimizer::new(mlp(), optimizer.clone()).unwrap();
            let first = held(&mut fused, before);
            load(&mut fused);
            let then = held(&mut fused, before);
            assert!(
                then < first + 0.05,
                "{index}: {first:.2} P, then {then:.2} P"
            );
        }
    }
}
