//! Trained parameters are displayed as a list, and an error names paths if nothing is trained.

use super::*;

#[test]
fn lora_group_without_match_is_an_error_with_paths() {
    let x = batches(1).remove(0);
    let nowhere = lora().set_param_group(ParamGroup::from_predicate("q_proj"));
    let model = dense();
    let quantized = QuantizedLora::new(nowhere.clone(), BaseFormat::Bits4);
    for model in [
        model.clone().apply_lora(nowhere),
        model.apply_reparameterization(quantized),
    ] {
        let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init());
        let error = fused.step(RATE, |model| model.loss(x.clone())).unwrap_err();
        assert_matches!(error, FusedError::NothingTrained { .. });
        assert_says(&error, "`layers.0.weight`");
        assert_says(&error, "more");
    }
}

#[test]
fn display_lists_trained_and_frozen_parameters() {
    let device = Device::flex().autodiff();
    let linear = |_| LinearConfig::new(4, 3).init(&device);
    let dense = || -> Vec<Linear> { (0..2).map(linear).collect() };
    let factors = ParamGroup::from_predicate("lora.a");
    let muon = optim::MuonConfig::new().build();
    let optimizer = AdamConfig::new().init().with_group(factors, muon, None);
    let model = in_codes(dense(), BaseFormat::Bits4);
    let model = model.unfreeze_group(ParamGroup::from_path("1.bias"));
    let fused = FusedOptimizer::new_ok(model, optimizer);
    // Two matrices of 4 x 3 and biases of 3; factors of rank 2.
    let numbers = "5 of 8 parameters are trained (31 of 58 elements)";
    assert!(fused.to_string().ends_with(numbers), "{fused}");
    let list = format!("{fused:#}");
    for line in [
        "0.weight [4, 3], 12 elements: frozen",
        "0.weight.lora.a [4, 2], 8 elements: trained, optimizer state momentum",
        "0.weight.lora.b [2, 3], 6 elements: trained, optimizer state",
        "1.bias [3], 3 elements: trained, optimizer state",
        "0.bias [3], 3 elements: frozen",
    ] {
        assert_says(&list, line);
    }
    let of = |end: &str| list.lines().find(|line| line.contains(end)).unwrap();
    let has_moment = |end| of(end).contains("moment_1");
    assert!(has_moment("1.bias") && !has_moment("lora.a"), "{list}");
    let devices = vec![device.clone(); 2];
    let replicas = FusedReplicas::new_ok(dense(), AdamConfig::new().init(), devices);
    let numbers = "4 of 4 parameters are trained (30 of 30 elements)";
    assert!(replicas.to_string().ends_with(numbers), "{replicas}");
}
