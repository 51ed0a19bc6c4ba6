//! Types that a device or the host lacks are refused by name. Offloaded and cast tensors exist once, and no longer than
//! needed.

use std::sync::{Arc, Mutex};

use super::rows::table::offloaded;
use super::rows::{settled, settled_before_training};
use super::*;

fn device() -> Device {
    Device::flex().autodiff()
}

#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn other() -> Device {
    Device::ndarray().autodiff()
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

#[test]
fn a_device_without_the_type_at_rest_computes_in_another() {
    let _alone = alone();
    let optimizer = || {
        backburn::optim::AdamWConfig::new()
            .with_weight_format(WeightFormat::Split24)
            .init()
    };
    let offload = OffloadConfig::new(Offload::Updates)
        .with_host(OffloadHost::Flex)
        .with_min_elements(1);
    let config = computed_in(FloatDType::F32).with_offload(Some(offload));
    let batch = || tokens(&other(), &[2]).remove(0);
    let mut fused =
        FusedOptimizer::new_ok(half(), optimizer()).with_config_on_ok(config.clone(), &other());
    fused.step_ok(RATE, |model| model.loss(batch()));
    let devices = vec![other(), other()];
    let mut fused = FusedReplicas::new_with_config(half(), optimizer(), devices, config).unwrap();
    fused.step_ok(RATE, [batch(), batch()], Network::loss);
}

#[test]
fn what_lacks_the_type_at_rest_is_refused() {
    let _alone = alone();
    let batch = || tokens(&device(), &[2]).remove(0);
    for config in [FusedConfig::new(), computed_in(FloatDType::F32)] {
        let fused = FusedOptimizer::new_ok(half(), adamw());
        let error = fused.with_config_on(config, &other()).unwrap_err();
        assert!(lacks_the_type(&error), "{error:?}");
    }
    let devices = vec![device(), other()];
    let mut ranks = FusedReplicas::new_ok(Network::init(&device()), adamw(), devices)
        .with_config_ok(computed_in(FloatDType::F32));
    let error = ranks.change_model(|model| cast(model, FloatDType::BF16).unwrap());
    let error = error.unwrap_err();
    assert!(lacks_the_type(&error), "{error:?}");
    ranks.step_ok(RATE, [batch()], Network::loss);

    // All of the ordinary model is on the host.
    let frozen = half().freeze_group(ParamGroup::from_predicate("layers"));
    let fused = FusedOptimizer::new_ok(frozen, adamw());
    let offload = OffloadConfig::new(Offload::Updates)
        .with_host(OffloadHost::NdArray)
        .with_min_elements(1_000_000);
    let config = FusedConfig::offload(offload);
    let error = fused.with_config_on(config, &device()).unwrap_err();
    assert!(lacks_the_type(&error), "{error:?}");

    let fused = FusedOptimizer::new_ok(Network::init(&other()), adamw());
    let error = fused
        .with_config(computed_in(FloatDType::Flex32))
        .unwrap_err();
    assert_matches!(error, FusedError::Config { .. });
}

/// Where the scale is, and its gradient.
type Noted = (Device, Vec<f32>);

/// Notes where the scale is stepped, and its gradient.
fn note(noted: &Arc<Mutex<Option<Noted>>>) -> impl GradientHook {
    let noted = noted.clone();
    hook(move |it| {
        if it.path == "scale" {
            *noted.lock().unwrap() = Some((it.device.clone(), it.elements()));
        }
        Answer::Use
    })
}

#[test]
fn small_parameters_stay_unless_computed_in_another_type() {
    let _alone = alone();
    let on_host = |config: FusedConfig| {
        let noted = Arc::default();
        let mut fused = FusedOptimizer::new_ok(Network::init(&device()), adamw())
            .with_config_on_ok(config, &device())
            .with_hook(ParamGroup::all(), note(&noted));
        fused.step_ok(RATE, |model| model.loss(tokens(&device(), &[2]).remove(0)));
        let (found, _) = noted.lock().unwrap().take().unwrap();
        found == other().inner()
    };
    let offload = OffloadConfig::new(Offload::Updates)
        .with_host(OffloadHost::NdArray)
        .with_min_elements(20);
    let offload = |config: FusedConfig| config.with_offload(Some(offload.clone()));
    assert!(!on_host(offload(FusedConfig::new())));
    assert!(!on_host(offload(computed_in(FloatDType::F32))));
    assert!(on_host(offload(computed_in(FloatDType::F64))));
}

#[test]
fn sums_in_full_precision_are_rounded_once() {
    let _alone = alone();
    let initial = half();
    let batches: Vec<_> = (0..8).map(|_| tokens(&device(), &[2]).remove(0)).collect();
    let noted = Arc::default();
    let config = computed_in(FloatDType::F32).with_full_precision_accumulation(true);
    let mut fused = FusedOptimizer::new_ok(copy(&initial, half), adamw())
        .with_config_ok(config)
        .with_hook(ParamGroup::all(), note(&noted));
    for batch in &batches {
        fused.accumulate_ok(|model| model.loss(batch.clone()));
    }
    fused.step_accumulated_ok(RATE);
    let computed = cast(initial, FloatDType::F32).unwrap();
    let gradients = batches.iter().map(|batch| {
        let gradients = computed.loss(batch.clone()).backward();
        computed.scale.val().grad(&gradients).unwrap()
    });
    let sum = gradients.reduce(|sum, gradient| sum + gradient).unwrap();
    let expected: Vec<f32> = sum.cast(FloatDType::BF16).into_data().iter().collect();
    assert_eq!(noted.lock().unwrap().take().unwrap().1, expected);
}

/// Nor does a host need the type in which the model computes.
#[test]
fn full_precision_takes_none_from_sums_in_the_wider_type_of_the_weights() {
    let _alone = alone();
    let initial = Network::init(&device());
    let batches = tokens(&device(), &[2, 4, 2]);
    let train = |config: FusedConfig, in_full_precision: bool| {
        let model = copy(&initial, || Network::init(&device()));
        let config = config
            .with_compute_dtype(Some(FloatDType::F16))
            .with_full_precision_accumulation(in_full_precision);
        let mut fused = FusedReplicas::new_ok(model, adamw(), flex(3)).with_config_ok(config);
        for _ in 0..3 {
            fused.accumulate_ok(batches.clone(), Network::loss);
            fused.step_ok(RATE, batches.clone(), Network::loss);
            fused.step_ok(RATE, batches.clone(), Network::loss);
        }
        fused.model()
    };
    let expected = train(FusedConfig::new(), false);
    for config in [
        FusedConfig::new(),
        offloaded(Offload::States),
        offloaded(Offload::Updates),
    ] {
        assert_equal_weights(&expected, &train(config, true));
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
fn copies_for_inference_go_with_who_reads_them() {
    let _alone = alone();
    for config in [
        computed_in(FloatDType::BF16),
        offloaded(Offload::Weights(OffloadedBlocks::All)),
    ] {
        let stay = slope(|width| {
            let mut fused = FusedOptimizer::new_ok(Network::of_width(width, &device()), adamw())
                .with_config_on_ok(config.clone(), &device());
            let batch = tokens(&device(), &[2]).remove(0);
            fused.step_ok(RATE, |model| model.loss_in_blocks(batch.clone()));
            let stay = Arc::new(Mutex::new(0));
            let noted = stay.clone();
            fused.step_ok(RATE, |model| {
                let before = settled();
                drop(model.valid().loss_in_blocks(batch.clone()));
                *noted.lock().unwrap() = settled().saturating_sub(before);
                model.loss_in_blocks(batch.clone())
            });
            *stay.lock().unwrap()
        });
        assert!(stay < 0.1, "{config:?}: {stay} of the layers");
    }
}

#[test]
fn frozen_weights_are_on_the_host_once_for_all_ranks() {
    let _alone = alone();
    let config = offloaded(Offload::Weights(OffloadedBlocks::All)).with_sharding(Sharding::Full);
    let [one, three] = [1, 3].map(|ranks| {
        slope(|width| {
            let model = Network::of_width(width, &other());
            let model = model.freeze_group(ParamGroup::from_predicate("layers"));
            let before = settled_before_training();
            let optimizer = SgdConfig::new().init();
            let devices = vec![device(); ranks];
            let mut fused =
                FusedReplicas::new_with_config(model, optimizer, devices, config.clone()).unwrap();
            fused.step_ok(
                RATE,
                tokens(&device(), &vec![2; ranks]),
                Network::loss_in_blocks,
            );
            settled().saturating_sub(before)
        })
    });
    assert!(
        three < one + 0.2,
        "{three} of the layers on three ranks, {one} on one"
    );
}

#[test]
fn replicas_are_made_without_the_weights_on_the_devices() {
    let _alone = alone();
    let config = offloaded(Offload::Weights(OffloadedBlocks::All)).with_sharding(Sharding::Full);
    let [one, two] = [1, 2].map(|ranks| {
        slope(|width| {
            let model = Network::of_width(width, &other());
            let before = settled_before_training();
            BYTES.reset_peak_usage();
            let optimizer = SgdConfig::new().init();
            let config = config.clone();
            let devices = vec![device(); ranks];
            let fused = FusedReplicas::new_with_config(model, optimizer, devices, config).unwrap();
            let peak = BYTES.peak_usage() - before;
            drop(fused);
            peak
        })
    });
    assert!(
        two < one + 0.3,
        "{two} of the layers beside the model for two ranks, {one} for one"
    );
}
