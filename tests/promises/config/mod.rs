//! A `FusedConfig` can be saved, and replaced in a training.

mod averages;
mod compute_dtype;

use burn::config::Config;

use crate::common::*;

const RATE: f64 = 1e-2;

fn init() -> Vec<Linear> {
    linears(2, 6, &flex())
}

#[allow(clippy::ptr_arg)] // It is the model.
fn loss(model: &Vec<Linear>, x: Tensor<2>) -> Tensor<1> {
    loss_of_layers(model, false, x) * 10.0
}

fn batches(count: usize, device: &Device) -> Vec<Tensor<2>> {
    randoms(count, [4, 6], device)
}

fn fuse(model: Vec<Linear>) -> FusedOptimizer<Vec<Linear>> {
    FusedOptimizer::new(model, AdamConfig::new().init()).unwrap()
}

fn lagged() -> FusedConfig {
    FusedConfig::lagged(1e-3)
}

fn scaling() -> LossScalingConfig {
    LossScalingConfig::new()
        .with_initial_scale(8.0)
        .with_growth_interval(Some(2))
        .with_overflow(Overflow::SkipParameter)
}

fn assert_loads_as_saved(config: &FusedConfig) {
    let file = tempfile::NamedTempFile::new().unwrap();
    config.save(file.path()).unwrap();
    assert_eq!(FusedConfig::load(file.path()).unwrap(), *config);
}

#[test]
fn config_loads_as_saved() {
    let blocks = GradientCheckpointingConfig::new()
        .with_keep_activations(vec![true, false])
        .with_offload_inputs(true);
    let config = lagged()
        .with_loss_scaling(Some(scaling()))
        .with_full_precision_accumulation(true)
        .with_gradient_checkpointing(blocks)
        .with_averaging(Some(WeightAveragingConfig::new().with_decay(Some(0.5))))
        .with_compute_dtype(Some(FloatDType::BF16))
        .with_offload(Some(
            OffloadConfig::new(Offload::Weights(OffloadedBlocks::Fraction(0.5)))
                .with_min_elements(7),
        ))
        .with_sharding(Sharding::Full)
        .with_ownership(Ownership::BySize)
        .with_max_bytes_in_flight(Some(1));
    assert_loads_as_saved(&config);
}

#[test]
fn config_field_unknown_is_refused_and_missing_is_default() {
    let scaling = FusedConfig::new().with_loss_scaling(Some(LossScalingConfig::new()));
    let averaging = FusedConfig::new().with_averaging(Some(WeightAveragingConfig::new()));
    let offload = OffloadConfig::new(Offload::Updates);
    let offload = FusedConfig::new().with_offload(Some(offload));
    let load = |json: &str| FusedConfig::load_binary(json.as_bytes());
    for (json, expected) in [
        ("{}", &FusedConfig::new()),
        (r#"{"loss_scaling": {}}"#, &scaling),
        (r#"{"averaging": {"every": 1}}"#, &averaging),
        (r#"{"gradient_checkpointing": {}}"#, &FusedConfig::new()),
        (r#"{"offload": {"offload": "Updates"}}"#, &offload),
    ] {
        assert_eq!(load(json).unwrap(), *expected);
    }
    for (json, unknown) in [
        (r#"{"cliping": {"Exact": 1.0}}"#, "cliping"),
        (r#"{"clipping": {"Exakt": 1.0}}"#, "Exakt"),
        (r#"{"loss_scaling": {"scale": 1.0}}"#, "scale"),
        (r#"{"averaging": {"decai": 0.9}}"#, "decai"),
        (r#"{"gradient_checkpointing": {"keep": []}}"#, "keep"),
        (
            r#"{"offload": {"offload": "Updates", "hosts": "Flex"}}"#,
            "hosts",
        ),
        (
            r#"{"offload": {"host": "Flex"}}"#,
            "missing field `offload`",
        ),
    ] {
        assert_says(&load(json).unwrap_err(), unknown);
    }
}

/// An infinite maximum measures the norm alone.
#[test]
fn config_infinite_clipping_norm_loads_as_saved() {
    let x = batches(1, &flex()).remove(0);
    for clipping in [
        GlobalNormClippingConfig::Exact,
        GlobalNormClippingConfig::ExactInBuffer,
        GlobalNormClippingConfig::Lagged,
    ] {
        for max_norm in [1.0, 1e-300, f64::INFINITY] {
            assert_loads_as_saved(&FusedConfig::clipping(clipping(max_norm)));
        }
        let mut plain = fuse(init());
        let config = FusedConfig::clipping(clipping(f64::INFINITY));
        let mut fused = fuse(plain.model()).with_config(config).unwrap();
        for _ in 0..2 {
            plain.step(RATE, |model| loss(model, x.clone())).unwrap();
            fused
                .step_repeatable(RATE, |model| loss(model, x.clone()))
                .unwrap();
            assert_eq!(fused.last_step().clipping, Some(1.0));
            assert!(fused.last_step().gradient_norm.unwrap() > 0.0);
        }
        assert_equal_weights(&plain.model(), &fused.model());
    }
}

#[test]
fn config_changed_drops_sums_and_adaptive_state() {
    let batches = batches(7, &flex());
    let both = lagged().with_loss_scaling(Some(scaling()));
    let initial = init();
    let train = |drops: bool| {
        let mut fused = fuse(copy(&initial, init))
            .with_config(both.clone())
            .unwrap();
        for x in &batches[..3] {
            fused.step(RATE, |model| loss(model, x.clone())).unwrap();
        }
        assert!(fused.last_step().clipping.unwrap() < 1.0);
        assert_eq!(fused.last_step().loss_scale, Some(16.0));
        if !drops {
            fused
                .accumulate(|model| loss(model, batches[3].clone()))
                .unwrap();
        }
        let mut fused = fused.with_config(FusedConfig::new()).unwrap();
        fused
            .step(RATE, |model| loss(model, batches[4].clone()))
            .unwrap();
        assert_eq!(fused.last_step().clipping, None);
        assert_eq!(fused.last_step().loss_scale, None);
        let mut fused = fused.with_config(both.clone()).unwrap();
        fused
            .step(RATE, |model| loss(model, batches[5].clone()))
            .unwrap();
        assert_eq!(fused.last_step().clipping, Some(1.0), "of the first step");
        assert_eq!(fused.last_step().loss_scale, Some(8.0));
        fused.model()
    };
    assert_equal_weights(&train(true), &train(false));
}

#[test]
fn config_after_hook_keeps_hook() {
    let fused = fuse(init()).with_hook(ParamGroup::all(), hook(|_| Answer::Veto));
    let mut fused = fused.with_config(lagged()).unwrap();
    fused
        .step(RATE, |model| loss(model, batches(1, &flex()).remove(0)))
        .unwrap();
    assert_eq!(fused.last_step().vetoed, 4);
}

#[test]
fn config_changed_begins_and_ends_offload() {
    let [_, ndarray] = cpus();
    let there = |model: Vec<Linear>| model.fork(&ndarray);
    let initial = init();
    let batches = batches(4, &ndarray);
    let train = |modes: &[Option<Offload>]| {
        let mut fused = fuse(there(copy(&initial, init)));
        for (step, x) in batches.iter().enumerate() {
            if let Some(offload) = modes.get(step) {
                let config = |offload| OffloadConfig::new(offload).with_min_elements(1);
                fused = fused
                    .with_config(FusedConfig::new().with_offload(offload.map(config)))
                    .unwrap();
            }
            fused.step(RATE, |model| loss(model, x.clone())).unwrap();
        }
        let rests: Vec<_> = fused.model().devices();
        (fused.model().fork(&flex()), rests)
    };
    let (expected, _) = train(&[]);
    for offload in [Offload::States, Offload::Updates] {
        let (found, rests) = train(&[None, Some(offload), None, None]);
        assert_equal_weights(&expected, &found);
        assert_eq!(rests, std::slice::from_ref(&ndarray));
        let (found, rests) = train(&[Some(offload), None, Some(offload)]);
        assert_equal_weights(&expected, &found);
        assert_eq!(rests, [flex()], "what waits is on the host");
    }
}

#[test]
fn config_of_several_devices_is_refused_on_one() {
    for config in [
        FusedConfig::sharded(Sharding::Full),
        FusedConfig::new().with_ownership(Ownership::BySize),
    ] {
        let error = fuse(init()).with_config(config.clone()).unwrap_err();
        assert_matches!(error, FusedError::Config { .. });
        assert_says(&error, "remove them, or use `FusedReplicas`");
        let removed = config
            .clone()
            .with_sharding(Sharding::State)
            .with_ownership(Ownership::ByParamId);
        fuse(init()).with_config(removed).unwrap();
        let optimizer = AdamConfig::new().init();
        let replicas = FusedReplicas::new(init(), optimizer, [flex()]).unwrap();
        replicas.with_config(config).unwrap();
    }
}

#[test]
fn config_of_replicas_is_that_of_one_but_for_offload() {
    let devices = [flex(), flex()];
    let config = lagged().with_sharding(Sharding::Full);
    let fused = || FusedReplicas::new(init(), AdamConfig::new().init(), devices.clone()).unwrap();
    let x = batches(2, &flex());
    let mut fused_in_full = fused().with_config(config.clone()).unwrap();
    for _ in 0..2 {
        fused_in_full.step(RATE, x.clone(), loss).unwrap();
    }
    assert_eq!(fused_in_full.config(), &config);
    assert!(fused_in_full.last_step().clipping.unwrap() < 1.0);
    let offload = config.with_offload(Some(OffloadConfig::new(Offload::Updates)));
    let error = fused().with_config(offload).unwrap_err();
    assert_matches!(error, FusedError::Offload { .. });
}
