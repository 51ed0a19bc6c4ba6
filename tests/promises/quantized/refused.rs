//! Weights that can't be quantized, or trained in that form, are refused by name.

use super::*;

#[test]
fn quantized_weight_in_training_is_an_error_by_name() {
    let of_burn = QLora::new(lora(), quantizer(QuantValue::Q8F));
    let of_burn = dense().apply_qlora(of_burn);
    for model in [quantized(BaseFormat::Bits4), of_burn] {
        let optimizer = || AdamConfig::new().init();
        let error = FusedOptimizer::new(model.clone().unfreeze(), optimizer()).unwrap_err();
        let FusedError::QuantizedInTraining { path } = &error else {
            panic!("{error}");
        };
        assert_eq!(path, "layers.0.weight");
        assert!(error.to_string().contains("`layers.0.weight` is quantized"));
        // All parameters except the bases.
        let bases = ParamGroup::from_paths(vec![
            "layers.0.weight",
            "layers.1.weight",
            "layers.2.weight",
        ]);
        let others = ParamGroup::all().exclude(bases);
        // Both ways out: without the bases, and with their weights and biases as ordinary parameters.
        for (model, updated) in [
            (model.clone().unfreeze_group(others), 9),
            (model.materialize().unfreeze(), 6),
        ] {
            let mut fused = FusedOptimizer::new(model, optimizer()).unwrap();
            fused
                .step(RATE, |model| model.loss(batches(1).remove(0)))
                .unwrap();
            assert_eq!(fused.last_step().updated, updated);
        }
    }
}

#[test]
fn quantized_record_in_dense_model_is_refused_by_name() {
    let optimizer = || AdamConfig::new().init();
    for format in FORMATS {
        let model = quantized(format);
        let record = || model.clone().into_record();
        let loaded = dense().load_record(record().allow_unused(true));
        let mut fused = FusedOptimizer::new(dense(), optimizer()).unwrap();
        for refused in [
            FusedOptimizer::new(loaded.clone(), optimizer()).map(drop),
            fused.change_model(|_| loaded),
        ] {
            let error = refused.unwrap_err();
            let FusedError::UnsupportedParameter { path, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(path, "layers.0.weight");
            assert_says(&error, "`QuantizedLora`");
            assert_says(&error, "`Module::materialize`");
        }
        let advised = quantized(format).load_record(record()).materialize();
        assert_equal_weights(&model.materialize(), &advised);
        let mut fused = FusedOptimizer::new(advised.unfreeze(), optimizer()).unwrap();
        fused
            .step(RATE, |model| model.loss(batches(1).remove(0)))
            .unwrap();
    }
}

#[test]
fn weight_that_cannot_be_quantized_is_refused_by_name() {
    let scaled = |mut model: Stack, by: f64| {
        let weight = model.layers[1].weight.clone();
        model.layers[1].weight = weight.map(|weight| weight * by);
        model
    };
    let in_f64 = cast(dense(), FloatDType::F64).unwrap();
    let adapted = dense().apply_lora(lora());
    let of_burn = dense().quantize_weights(&mut quantizer(QuantValue::Q8S));
    let not_finite = "parameter `layers.1.weight` has a value that is not finite";
    for (model, words) in [
        (scaled(dense(), f64::INFINITY), not_finite),
        (scaled(in_f64, 1e60), not_finite),
        (
            adapted.clone(),
            "parameter `layers.0.weight` already has an adapter",
        ),
        (of_burn, "parameter `layers.0.weight` is already quantized"),
    ] {
        assert_says(
            &panic_of(|| with_quantized_base(model, BaseFormat::Bits4)),
            words,
        );
    }
    // Merged adapters are no longer adapters.
    assert_quantized(&with_quantized_base(
        adapted.materialize(),
        BaseFormat::Bits4,
    ));
}
