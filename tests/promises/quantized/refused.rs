//! Weights that can't be quantized, or trained in that form, are refused by name.

use super::*;

#[test]
fn a_quantized_weight_that_is_thawed_is_an_error_by_name() {
    let scheme = Device::flex().settings().quantization.scheme;
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    quantizer.set_param_group(ParamGroup::from_predicate("weight"));
    let of_burn = Stack::dense().apply_qlora(QLora::new(lora(), quantizer));
    for model in [quantized(BaseFormat::Bits4), of_burn] {
        let optimizer = || AdamConfig::new().init();
        let error = FusedOptimizer::new(model.clone().unfreeze(), optimizer()).unwrap_err();
        let FusedError::QuantizedInTraining { path } = &error else {
            panic!("{error}");
        };
        assert_eq!(path, "layers.0.weight");
        assert!(error.to_string().contains("`layers.0.weight` is quantized"));
        // All but the bases.
        let bases = ParamGroup::from_paths(vec![
            "layers.0.weight",
            "layers.1.weight",
            "layers.2.weight",
        ]);
        let model = model.unfreeze_group(ParamGroup::all().exclude(bases));
        let mut fused = FusedOptimizer::new_ok(model, optimizer());
        fused.step_ok(RATE, |model| model.loss(batches(1).remove(0)));
        assert_eq!(fused.last_step().updated, 9);
    }
}

#[test]
#[should_panic(expected = "parameter `layers.1.weight` has a value that is not finite")]
fn a_weight_that_is_not_finite_is_refused_by_name() {
    let mut model = Stack::dense();
    let weight = model.layers[1].weight.clone();
    model.layers[1].weight = weight.map(|weight| weight / 0.0);
    model.apply_reparameterization(QuantizedLora::new(lora(), BaseFormat::Bits4));
}

#[test]
#[should_panic(expected = "parameter `layers.1.weight` has a value that is not finite")]
fn a_weight_in_f64_that_no_f32_holds_is_refused_by_name() {
    let mut model = cast(Stack::dense(), FloatDType::F64).unwrap();
    let weight = model.layers[1].weight.clone();
    model.layers[1].weight = weight.map(|weight| weight * 1e60);
    model.apply_reparameterization(QuantizedLora::new(lora(), BaseFormat::Bits4));
}

#[test]
#[should_panic(expected = "parameter `layers.0.weight` carries an adapter already")]
fn a_weight_that_carries_an_adapter_is_refused_by_name() {
    let model = Stack::dense().apply_lora(lora());
    model.apply_reparameterization(QuantizedLora::new(lora(), BaseFormat::Bits4));
}

#[test]
fn a_model_whose_adapters_were_added_takes_others() {
    let model = Stack::dense().apply_lora(lora()).materialize();
    let lora = QuantizedLora::new(lora(), BaseFormat::Bits4);
    assert_in_codes(&model.apply_reparameterization(lora));
}

#[test]
#[should_panic(expected = "parameter `layers.0.weight` is quantized already")]
fn a_weight_in_codes_of_burn_is_refused_by_name() {
    let scheme = Device::flex().settings().quantization.scheme;
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    quantizer.set_param_group(ParamGroup::from_predicate("weight"));
    let model = Stack::dense().quantize_weights(&mut quantizer);
    model.apply_reparameterization(QuantizedLora::new(lora(), BaseFormat::Bits4));
}
