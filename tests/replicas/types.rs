//! Types that a device or the host does not support are refused by name. Offloaded and cast tensors exist once, and no
//! longer than needed.

use std::sync::Arc;

use super::rows::table::offloaded;
use super::rows::{settled, settled_before_training};
use super::*;

fn device() -> Device {
    Device::flex().autodiff()
}

fn other() -> Device {
    cpus()[1].clone()
}

fn half() -> Network {
    cast(Network::init(&device()), FloatDType::BF16).unwrap()
}

fn computed_in(dtype: FloatDType) -> FusedConfig {
    FusedConfig::new().with_compute_dtype(Some(dtype))
}

fn lacks_the_type(error: &FusedError) -> bool {
    matches!(
        error,
        FusedError::FloatTypeNotSupported { .. } | FusedError::Offload { .. }
    )
}

/// Steps as in mixed precision by hand: `other` computes with a copy in f32, and the host updates.
fn step_by_hand(model: Network, optimizer: &mut ModuleOptimizer, batches: &Batches) -> Network {
    let computed = cast(model.clone(), FloatDType::F32).unwrap().fork(&other());
    let mut sum = GradientsAccumulator::new();
    for batch in batches {
        let gradients = computed.loss(batch.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &computed);
        let gradients = gradients.to_device(&device(), &model);
        sum.accumulate(&model, in_types_of(&model, gradients));
    }
    optimizer.step(RATE, model, sum.grads())
}

#[test]
fn device_without_type_at_rest_matches_mixed_precision() {
    let _alone = alone();
    let optimizer = || {
        let config = backburn::optim::AdamWConfig::new();
        config.with_weight_format(WeightFormat::Split24).init()
    };
    let offload = Some(offload_from(&other(), Offload::Updates));
    let config = computed_in(FloatDType::F32).with_offload(offload);
    let initial = half();
    for ranks in [1, 2] {
        let steps: Vec<_> = (0..3).map(|_| tokens(&other(), &vec![2; ranks])).collect();
        let mut by_hand = optimizer();
        let expected = steps.iter().fold(copy(&initial, half), |model, batches| {
            step_by_hand(model, &mut by_hand, batches)
        });
        let (model, config) = (copy(&initial, half), config.clone());
        let found = if ranks == 1 {
            let fused = FusedOptimizer::new(model, optimizer()).unwrap();
            let mut fused = fused.with_config_on(config, &other()).unwrap();
            for batches in steps {
                fused
                    .step(RATE, |model| model.loss(batches[0].clone()))
                    .unwrap();
            }
            fused.model()
        } else {
            let devices = vec![other(); ranks];
            let mut fused =
                FusedReplicas::new_with_config(model, optimizer(), devices, config).unwrap();
            for batches in steps {
                fused.step(RATE, batches, Network::loss).unwrap();
            }
            fused.model()
        };
        assert_equal_weights(&expected, &found);
        assert_changed(&initial, &found, |_| true);
    }
}

#[test]
fn type_at_rest_missing_on_device_is_refused() {
    let _alone = alone();
    let batch = || tokens(&device(), &[2]).remove(0);
    for config in [FusedConfig::new(), computed_in(FloatDType::F32)] {
        let fused = FusedOptimizer::new(half(), adamw()).unwrap();
        let error = fused.with_config_on(config, &other()).unwrap_err();
        assert!(lacks_the_type(&error), "{error:?}");
    }
    let devices = vec![device(), other()];
    let mut ranks = FusedReplicas::new(Network::init(&device()), adamw(), devices)
        .unwrap()
        .with_config(computed_in(FloatDType::F32))
        .unwrap();
    let change = |model| cast(model, FloatDType::BF16).unwrap();
    let error = ranks.change_model(change).unwrap_err();
    assert!(lacks_the_type(&error), "{error:?}");
    ranks.step(RATE, [batch()], Network::loss).unwrap();

    // The whole ordinary model is on the host.
    let frozen = half().freeze_group(ParamGroup::from_predicate("layers"));
    let fused = FusedOptimizer::new(frozen, adamw()).unwrap();
    let offload = offload_from_flex(Offload::Updates).with_min_elements(1_000_000);
    let config = FusedConfig::offload(offload);
    let error = fused.with_config_on(config, &device()).unwrap_err();
    assert!(lacks_the_type(&error), "{error:?}");

    let fused = FusedOptimizer::new(Network::init(&other()), adamw()).unwrap();
    let error = fused
        .with_config(computed_in(FloatDType::Flex32))
        .unwrap_err();
    assert_matches!(error, FusedError::Config { .. });
}

#[test]
fn small_parameters_stay_unless_computed_in_other_type() {
    let _alone = alone();
    let on_host = |config: FusedConfig| {
        let place: Arc<Mutex<Option<Device>>> = Arc::default();
        let noted = place.clone();
        let notes = hook(move |it| {
            if it.path == "scale" {
                *noted.lock().unwrap() = Some(it.device.clone());
            }
            Answer::Use
        });
        let mut fused = FusedOptimizer::new(Network::init(&device()), adamw())
            .unwrap()
            .with_config_on(config, &device())
            .unwrap()
            .with_hook(ParamGroup::all(), notes);
        fused
            .step(RATE, |model| model.loss(tokens(&device(), &[2]).remove(0)))
            .unwrap();
        let place = place.lock().unwrap().take();
        place == Some(other().inner())
    };
    let offload = Some(offload_from_flex(Offload::Updates).with_min_elements(20));
    assert!(!on_host(FusedConfig::new().with_offload(offload.clone())));
    for (dtype, expected) in [(FloatDType::F32, false), (FloatDType::F64, true)] {
        let config = computed_in(dtype).with_offload(offload.clone());
        assert_eq!(on_host(config), expected, "{dtype:?}");
    }
}

/// The host also need not support the compute type.
#[test]
fn full_precision_accumulation_keeps_wider_sums_and_plain_steps() {
    let _alone = alone();
    let batches = tokens(&device(), &[2, 4, 2]);
    let adapted = || {
        let model = Network::init(&device()).apply_lora(Lora::new(2, 4.0));
        cast(model.unfreeze(), FloatDType::BF16).unwrap()
    };
    let plain = || Network::init(&device());
    let in_f16 = |config: FusedConfig| config.with_compute_dtype(Some(FloatDType::F16));
    type Init<'a> = &'a dyn Fn() -> Network;
    let cases: [(Init<'_>, FusedConfig, bool); 4] = [
        (&plain, in_f16(FusedConfig::new()), true),
        (&plain, in_f16(offloaded(Offload::States)), true),
        (&plain, in_f16(offloaded(Offload::Updates)), true),
        (&adapted, FusedConfig::new(), false),
    ];
    for (init, config, accumulates) in cases {
        let initial = init();
        let train = |in_full_precision: bool| {
            let config = config
                .clone()
                .with_full_precision_accumulation(in_full_precision);
            let fused = FusedReplicas::new(copy(&initial, init), adamw(), flex(3)).unwrap();
            let mut fused = fused.with_config(config).unwrap();
            for _ in 0..3 {
                if accumulates {
                    fused.accumulate(batches.clone(), Network::loss).unwrap();
                }
                fused.step(RATE, batches.clone(), Network::loss).unwrap();
            }
            fused.model()
        };
        println!("{config}");
        assert_equal_weights(&train(false), &train(true));
    }
}

const WIDTHS: [usize; 2] = [192, 384];

/// Returns the growth of `bytes` with the width, in multiples of the layers in f32.
fn slope(bytes: impl Fn(usize) -> usize) -> f64 {
    let [small, large] = WIDTHS.map(|width| bytes(width) as f64);
    let [less, more] = WIDTHS.map(|width| (4 * 4 * width * width) as f64);
    (large - small) / (more - less)
}

#[test]
fn copies_for_inference_are_freed_after_read() {
    let _alone = alone();
    for config in [
        computed_in(FloatDType::BF16),
        offloaded(Offload::Weights(OffloadedBlocks::All)),
    ] {
        let stay = slope(|width| {
            let mut fused = FusedOptimizer::new(Network::of_width(width, &device()), adamw())
                .unwrap()
                .with_config_on(config.clone(), &device())
                .unwrap();
            let batch = tokens(&device(), &[2]).remove(0);
            fused
                .step(RATE, |model| model.loss_in_blocks(batch.clone()))
                .unwrap();
            let mut stay = 0;
            fused
                .step(RATE, |model| {
                    let before = settled();
                    drop(model.valid().loss_in_blocks(batch.clone()));
                    stay = settled().saturating_sub(before);
                    model.loss_in_blocks(batch.clone())
                })
                .unwrap();
            stay
        });
        assert!(stay < 0.1, "{config:?}: {stay} of the layers");
    }
}

#[test]
fn frozen_weights_are_on_host_once_for_all_ranks() {
    let _alone = alone();
    let config = offloaded(Offload::Weights(OffloadedBlocks::All)).with_sharding(Sharding::Full);
    let [one, three] = [1, 3].map(|ranks| {
        slope(|width| {
            let model = Network::of_width(width, &other());
            let model = model.freeze_group(ParamGroup::from_predicate("layers"));
            let before = settled_before_training();
            let optimizer = SgdConfig::new().init();
            let fused =
                FusedReplicas::new_with_config(model, optimizer, flex(ranks), config.clone());
            let mut fused = fused.unwrap();
            let batches = tokens(&device(), &vec![2; ranks]);
            fused.step(RATE, batches, Network::loss_in_blocks).unwrap();
            settled().saturating_sub(before)
        })
    });
    assert!(three < one + 0.2, "{three} layers on three, {one} on one");
}

#[test]
fn replicas_are_made_without_weights_on_devices() {
    let _alone = alone();
    let config = offloaded(Offload::Weights(OffloadedBlocks::All)).with_sharding(Sharding::Full);
    let [one, two] = [1, 2].map(|ranks| {
        slope(|width| {
            let model = Network::of_width(width, &other());
            let before = settled_before_training();
            BYTES.reset_peak_usage();
            let optimizer = SgdConfig::new().init();
            let fused =
                FusedReplicas::new_with_config(model, optimizer, flex(ranks), config.clone());
            let peak = BYTES.peak_usage() - before;
            drop(fused);
            peak
        })
    });
    assert!(two < one + 0.3, "{two} layers for two ranks, {one} for one");
}
