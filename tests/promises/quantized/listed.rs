//! Trained parameters are displayed as a list, and an error names paths if nothing is trained.

use burn::nn::conv::{Conv2d, Conv2dConfig};

use super::*;

/// Panics unless the first step is an error that says these words and none of the others.
#[track_caller]
fn assert_nothing_trained<M: Module>(
    model: M,
    loss: impl Fn(&M) -> Tensor<1>,
    words: &[&str],
    others: &[&str],
) {
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let error = fused.step(RATE, loss).unwrap_err();
    assert_matches!(error, FusedError::NothingTrained { .. });
    words.iter().for_each(|words| assert_says(&error, words));
    let error = error.to_string();
    for others in others {
        assert!(!error.contains(others), "`{others}` is in: {error}");
    }
    assert!(error.matches('`').count() <= 2 * 7, "{error}");
}

#[test]
fn lora_group_without_matrix_is_an_error_with_paths() {
    let device = flex();
    let dense = Stack::init(7, WIDTH, &device);
    let x = batches(1).remove(0);
    let loss = |model: &Stack| model.loss(x.clone());
    // The group matches nothing, or only biases.
    for group in ["q_proj", "bias"] {
        let lora = lora().set_param_group(ParamGroup::from_predicate(group));
        let quantized = QuantizedLora::new(lora.clone(), BaseFormat::Bits4);
        for model in [
            dense.clone().apply_lora(lora),
            dense.clone().apply_reparameterization(quantized),
        ] {
            let words = [
                "`Lora`",
                "`layers.0.weight`",
                "`layers.4.weight` and 2 more",
            ];
            assert_nothing_trained(model, loss, &words, &["bias"]);
        }
    }
    let adapted = with_quantized_base(dense.clone(), BaseFormat::Bits4).freeze();
    let words = ["Unfreeze the adapters", "`layers.0.weight.lora.a`", "more"];
    assert_nothing_trained(adapted, loss, &words, &["bias", "values"]);
    let norm = with_quantized_base(LayerNormConfig::new(WIDTH).init(&device), BaseFormat::Bits4);
    let loss = |norm: &LayerNorm| norm.forward(x.clone()).mean();
    let words = ["matrices, and the model has none", "`gamma`, `beta`"];
    assert_nothing_trained(norm, loss, &words, &["more"]);
}

#[test]
fn tracked_input_of_frozen_model_is_an_error_with_paths() {
    let x = batches(1).remove(0).require_grad();
    let loss = |model: &Stack| model.loss(x.clone());
    let words = ["`layers.0.weight`", "`layers.2.weight`"];
    assert_nothing_trained(dense().freeze(), loss, &words, &["bias"]);
}

/// A model without matrices, with running statistics.
#[derive(Module, Debug)]
struct Convolution {
    conv: Conv2d,
    norm: BatchNorm,
}

#[test]
fn advice_for_frozen_parameters_works_for_each_path() {
    let device = flex();
    let model = Convolution {
        conv: Conv2dConfig::new([1, 2], [2, 2]).init(&device),
        norm: BatchNormConfig::new(2).init(&device),
    };
    let model = model.freeze();
    let x = Tensor::<4>::ones([2, 1, 4, 4], &device);
    let loss = |model: &Convolution| model.norm.forward(model.conv.forward(x.clone())).mean();
    let fused = |model| FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let error = fused(model.clone()).step(RATE, loss).unwrap_err();
    let error = error.to_string();
    let (_, paths) = error.split_once("unfreeze_group`: ").unwrap();
    let paths: Vec<_> = paths.split('`').skip(1).step_by(2).collect();
    assert_eq!(paths.len(), 4, "{paths:?}");
    for path in paths {
        let mut fused = fused(model.clone().unfreeze_group(ParamGroup::from_path(path)));
        fused.step(RATE, loss).unwrap();
        assert_eq!(fused.last_step().updated, 1, "{path}");
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
    let model = with_quantized_base(dense(), BaseFormat::Bits4);
    let model = model.unfreeze_group(ParamGroup::from_path("1.bias"));
    let fused = FusedOptimizer::new(model, optimizer).unwrap();
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
    let replicas = FusedReplicas::new(dense(), AdamConfig::new().init(), devices).unwrap();
    let numbers = "4 of 4 parameters are trained (30 of 30 elements)";
    assert!(replicas.to_string().ends_with(numbers), "{replicas}");
}

/// The model holds its base during updates only.
#[test]
fn trained_base_is_listed_with_its_shape() {
    let model = LinearConfig::new(4, 3).with_bias(false).init(&flex());
    let model: Linear = model.apply_lora(Lora::new(2, 4.0)).unfreeze();
    let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let text = format!("{fused:#}");
    assert_says(&text, "3 of 3 parameters are trained (26 of 26 elements)");
    assert_says(
        &text,
        "weight [4, 3], 12 elements: trained after the backward pass",
    );
}
