//! One value says how to train: it can be saved, set in the middle, and is refused as a whole.

use backburn::{
    FusedConfig, FusedError, FusedOptimizer, FusedReplicas, GlobalNormClippingConfig,
    GradientCheckpointingConfig, LossScalingConfig, Offload, OffloadConfig, Overflow, Ownership,
    Sharding,
};
use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};

use crate::compare::{assert_equal_weights, copy};

const RATE: f64 = 1e-2;

#[allow(deprecated)] // Burn 0.22 still ships it.
fn ndarray() -> Device {
    Device::ndarray().autodiff()
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn init() -> Vec<Linear> {
    let layer = || LinearConfig::new(6, 6).init(&device());
    vec![layer(), layer()]
}

#[allow(clippy::ptr_arg)] // It is the model.
fn loss(model: &Vec<Linear>, x: Tensor<2>) -> Tensor<1> {
    let layers = model.iter();
    let y = layers.fold(x, |x, layer| layer.forward(x).tanh());
    y.powi_scalar(2).mean() * 10.0
}

fn batches(count: usize, device: &Device) -> Vec<Tensor<2>> {
    let draw = |_| Tensor::random([4, 6], Distribution::Default, &Device::flex());
    let batches = (0..count).map(draw);
    batches
        .map(|x: Tensor<2>| x.to_device(&device.clone().inner()))
        .map(Tensor::from_inner)
        .collect()
}

fn fuse(model: Vec<Linear>) -> FusedOptimizer<Vec<Linear>> {
    FusedOptimizer::new(model, AdamConfig::new().init())
}

fn lagged() -> FusedConfig {
    FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Lagged(1e-3)))
}

fn scaling() -> LossScalingConfig {
    LossScalingConfig::new()
        .with_initial_scale(8.0)
        .with_growth_interval(Some(2))
        .with_overflow(Overflow::SkipParameter)
}

#[test]
fn a_config_that_was_saved_is_the_same() {
    let config = lagged()
        .with_loss_scaling(Some(scaling()))
        .with_full_precision_accumulation(true)
        .with_gradient_checkpointing(
            GradientCheckpointingConfig::new().with_keep_activations(vec![true, false]),
        )
        .with_offload(Some(OffloadConfig::new(Offload::Updates)))
        .with_sharding(Sharding::Full)
        .with_ownership(Ownership::BySize)
        .with_max_bytes_under_way(Some(1))
        .with_draws_random_numbers(false);
    let file = tempfile::NamedTempFile::new().unwrap();
    config.save(file.path()).unwrap();
    assert_eq!(FusedConfig::load(file.path()).unwrap(), config);
    assert_eq!(FusedConfig::load_binary(b"{}").ok(), None);
}

#[test]
fn a_config_set_in_the_middle_keeps_what_was_learned() {
    let initial = init();
    let batches = batches(6, &device());
    let both = lagged().with_loss_scaling(Some(scaling()));
    let mut through = fuse(copy(&initial, init)).with_config(both.clone());
    let mut changed = fuse(copy(&initial, init)).with_config(both.clone());
    for (step, x) in batches.iter().enumerate() {
        // The same again, and with options of blocks that there are none of.
        if step == 3 {
            let keep = GradientCheckpointingConfig::new().with_keep_activations(vec![true]);
            changed.set_config(both.clone().with_gradient_checkpointing(keep));
        }
        for fused in [&mut through, &mut changed] {
            fused.step(RATE, |model| loss(model, x.clone()));
        }
        assert_eq!(through.last_step(), changed.last_step(), "step {step}");
    }
    assert!(through.last_step().loss_scale.unwrap() > 8.0);
    assert_equal_weights(&through.model(), &changed.model());
}

#[test]
fn what_is_taken_out_of_a_config_is_gone_and_begins_anew() {
    let batches = batches(6, &device());
    let both = lagged().with_loss_scaling(Some(scaling()));
    let mut fused = fuse(init()).with_config(both.clone());
    let step = |fused: &mut FusedOptimizer<_>, index: usize| {
        fused.step(RATE, |model| loss(model, batches[index].clone()));
    };
    (0..3).for_each(|index| step(&mut fused, index));
    assert!(fused.last_step().clipping.unwrap() < 1.0);
    assert_eq!(fused.last_step().loss_scale, Some(16.0));

    fused.set_config(FusedConfig::new());
    step(&mut fused, 3);
    assert_eq!(fused.last_step().clipping, None);
    assert_eq!(fused.last_step().loss_scale, None);

    fused.set_config(both);
    step(&mut fused, 4);
    assert_eq!(fused.last_step().clipping, Some(1.0), "of the first step");
    assert_eq!(fused.last_step().loss_scale, Some(8.0));
}

#[test]
fn a_config_that_is_refused_changes_nothing() {
    let batches = batches(4, &device());
    let initial = init();
    let mut expected = fuse(copy(&initial, init)).with_config(lagged());
    let mut fused = fuse(copy(&initial, init)).with_config(lagged());
    let on_the_host = OffloadConfig::new(Offload::Updates).with_min_elements(1);
    let refused = [
        FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Exact(0.0))),
        FusedConfig::new().with_loss_scaling(Some(scaling().with_initial_scale(-1.0))),
        // The device is the host; all else would do.
        FusedConfig::new()
            .with_loss_scaling(Some(scaling()))
            .with_offload(Some(on_the_host)),
    ];
    for (step, x) in batches.iter().enumerate() {
        if let Some(config) = refused.get(step) {
            assert!(fused.try_set_config(config.clone()).is_err());
            assert_eq!(fused.config(), &lagged());
        }
        for fused in [&mut expected, &mut fused] {
            fused.step(RATE, |model| loss(model, x.clone()));
        }
        assert_eq!(fused.last_step(), expected.last_step());
    }
    assert_equal_weights(&expected.model(), &fused.model());
}

/// The sums have the scale under which their gradients came.
#[test]
fn another_loss_scale_waits_for_the_step_that_uses_the_sums() {
    let initial = init();
    let x = batches(2, &device());
    let scaled = |scale| {
        let scaling = scaling().with_initial_scale(scale);
        FusedConfig::new().with_loss_scaling(Some(scaling))
    };
    let mut expected = fuse(copy(&initial, init));
    expected.accumulate(|model| loss(model, x[0].clone()));
    expected.step(RATE, |model| loss(model, x[1].clone()));
    for (before, after) in [
        (scaled(1024.0), FusedConfig::new()),
        (FusedConfig::new(), scaled(1024.0)),
        (scaled(1024.0), scaled(8.0)),
    ] {
        let mut fused = fuse(copy(&initial, init)).with_config(before);
        fused.accumulate(|model| loss(model, x[0].clone()));
        let error = fused.try_set_config(after.clone()).unwrap_err();
        assert!(error.to_string().contains("drop_accumulated"), "{error}");
        fused.step(RATE, |model| loss(model, x[1].clone()));
        assert_equal_weights(&expected.model(), &fused.model());
        fused.set_config(after);
    }
}

/// States that wait go through a record in f32, which those of a model in f64 don't outlive.
#[test]
fn a_refused_config_leaves_states_and_records_as_they_are() {
    let ndarray = ndarray();
    let model = backburn::cast(init().fork(&ndarray), FloatDType::F64);
    let batches = batches(6, &ndarray);
    let loss = |model: &Vec<Linear>, x: &Tensor<2>| loss(model, x.clone().cast(FloatDType::F64));
    let scaled = FusedConfig::new().with_loss_scaling(Some(scaling()));
    let train = |optimizer: ModuleOptimizer, refused: Option<FusedConfig>| {
        let mut fused = FusedOptimizer::new(model.clone().fork(&ndarray), optimizer);
        fused.set_config(scaled.clone());
        for (step, x) in batches.iter().enumerate() {
            if let (3, Some(refused)) = (step, &refused) {
                let error = fused.try_set_config(refused.clone()).unwrap_err();
                assert!(error.to_string().contains("F64"), "{error}");
            }
            fused.step(RATE, |model| loss(model, x));
        }
        fused
    };
    // However small the parameters.
    for min_elements in [1, 4096] {
        let states = OffloadConfig::new(Offload::States).with_min_elements(min_elements);
        let refused = || Some(scaled.clone().with_offload(Some(states.clone())));

        let adam = || AdamConfig::new().init();
        let (expected, found) = (train(adam(), None), train(adam(), refused()));
        assert_equal_weights(&expected.model(), &found.model());

        let sgd = || SgdConfig::new().init();
        let mut fused = train(sgd(), refused());
        let mut resumed = FusedOptimizer::new(fused.model(), sgd()).with_config(scaled.clone());
        resumed.load_record(fused.to_record());
        for fused in [&mut fused, &mut resumed] {
            fused.step(RATE, |model| loss(model, &batches[0]));
        }
        assert_eq!(fused.last_step().loss_scale, Some(64.0));
        assert_eq!(fused.last_step(), resumed.last_step());
    }
}

/// States, weights and sums come home again, in the middle of an accumulation, too.
#[test]
fn offload_can_begin_and_end_between_two_steps() {
    let ndarray = ndarray();
    let there = |model: Vec<Linear>| model.fork(&ndarray);
    let initial = init();
    let batches = batches(8, &ndarray);
    let train = |modes: &[Option<Offload>]| {
        let mut fused = fuse(there(copy(&initial, init)));
        for (step, pair) in batches.chunks(2).enumerate() {
            fused.accumulate(|model| loss(model, pair[0].clone()));
            if let Some(offload) = modes.get(step) {
                let config = |offload| OffloadConfig::new(offload).with_min_elements(1);
                fused.set_config(FusedConfig::new().with_offload(offload.map(config)));
            }
            fused.accumulate(|model| loss(model, pair[0].clone()));
            fused.step(RATE, |model| loss(model, pair[1].clone()));
        }
        let rests: Vec<_> = fused.model().devices();
        (fused.model().fork(&device()), rests)
    };
    let (expected, _) = train(&[]);
    for offload in [Offload::States, Offload::Updates] {
        let (found, rests) = train(&[None, Some(offload), None, None]);
        assert_equal_weights(&expected, &found);
        assert_eq!(rests, std::slice::from_ref(&ndarray));
        let (found, rests) = train(&[Some(offload), None, Some(offload)]);
        assert_equal_weights(&expected, &found);
        assert_eq!(rests, [device()], "what waits is on the host");
    }
}

#[test]
fn several_devices_take_the_same_config_but_for_offload() {
    let devices = [device(), device()];
    let mut fused = FusedReplicas::new(init(), AdamConfig::new().init(), devices);
    let config = lagged().with_sharding(Sharding::Full);
    fused.set_config(config.clone());
    let x = batches(2, &device());
    fused.step(RATE, x.clone(), loss);
    let offload = config
        .clone()
        .with_offload(Some(OffloadConfig::new(Offload::Updates)));
    let error = fused.try_set_config(offload).unwrap_err();
    assert!(matches!(error, FusedError::Offload { .. }), "{error}");
    assert_eq!(fused.config(), &config);
    // The same training goes on, and clips by the norm of the step before.
    fused.set_config(config.with_max_bytes_under_way(Some(0)));
    fused.step(RATE, x, loss);
    assert!(fused.last_step().clipping.unwrap() < 1.0);
}
