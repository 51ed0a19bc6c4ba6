//! The extra bits of bf16 weights, on the CPU backend that supports them.

use super::*;

on_every_backend!(cast_keeps_running_statistics_and_frozen_weights);

/// A loss whose gradient does not depend on the weights and is exact in both types.
fn linear_loss(model: &Network, factors: &[Tensor<2>; 2]) -> Tensor<1> {
    let dtype = FloatDType::from(model.first.weight.val().dtype());
    let [first, second] = factors.clone().map(|factor| factor.cast(dtype));
    (model.first.weight.val() * first).sum() + (model.second.weight.val() * second).sum()
}

#[test]
fn split24_stays_near_f32() {
    let device = Device::flex().autodiff();
    let model = cast(Network::init(&device), FloatDType::BF16).unwrap();
    let wide = cast(model.clone(), FloatDType::F32).unwrap();
    let factor = |shape: [usize; 2]| {
        let random = Tensor::<2>::random(shape, Distribution::Default, &device.clone().inner());
        let random = random.sub_scalar(0.4).cast(FloatDType::BF16);
        Tensor::from_inner(random.cast(FloatDType::F32))
    };
    let config = optim::AdamWConfig::new().with_weight_decay(0.1);
    let mut exact = FusedOptimizer::new(wide, config.clone().init()).unwrap();
    let split = config.with_weight_format(WeightFormat::Split24).init();
    let mut split = FusedOptimizer::new(model, split).unwrap();
    for step in 0..200 {
        let factors = [factor([61, 71]), factor([71, 64])];
        let rate = RATE / (1.0 + step as f64);
        exact
            .step(rate, |model| linear_loss(model, &factors))
            .unwrap();
        split
            .step(rate, |model| linear_loss(model, &factors))
            .unwrap();
    }
    let full = split.full_precision_model();
    assert_near(&exact.model(), &full);
    // The model computes with the nearest bf16.
    assert_equal_weights(&cast(full, FloatDType::BF16).unwrap(), &split.model());
}

#[test]
fn low_bits_of_other_weights_count_as_zero() {
    let device = &Device::flex().autodiff();
    let optimizer = optim::AdamWConfig::new().with_weight_format(WeightFormat::Split24);
    let model = cast(Network::init(device), FloatDType::BF16).unwrap();
    let batches = batches(device, FloatDType::BF16);
    let mut fused = FusedOptimizer::new(model, optimizer.init()).unwrap();
    fused
        .step(RATE, |model| model.loss(batches[0].clone()))
        .unwrap();
    let joined = fused.full_precision_model();
    let plain = cast(fused.model(), FloatDType::F32).unwrap();
    assert_changed(&plain, &joined, |path| !path.starts_with("norm"));

    // The weights were set from outside, so the training uses the set values.
    fused
        .change_model(|model| map_values(model, |_, value| value + 0.5))
        .unwrap();
    let plain = cast(fused.model(), FloatDType::F32).unwrap();
    assert_equal_weights(&plain, &fused.full_precision_model());
}

fn cast_keeps_running_statistics_and_frozen_weights(device: &Device) {
    let model = Network::init(device);
    let twin = model.clone();
    let frozen = Network {
        second: model.second.clone().no_grad(),
        ..model
    };
    let model = cast(frozen, FloatDType::F64).unwrap();
    let dtype = |tensor: Tensor<1>| tensor.dtype();
    assert_eq!(dtype(model.norm.running_mean.value()), DType::F32);
    assert_eq!(dtype(model.norm.running_var.value()), DType::F32);
    assert_eq!(model.norm.running_var.value().shape().num_elements(), 71);
    assert_eq!(dtype(model.norm.gamma.val()), DType::F64);
    assert_eq!(model.first.weight.val().dtype(), DType::F64);
    assert!(model.first.weight.is_require_grad());
    assert_eq!(model.second.weight.val().dtype(), DType::F64);
    assert!(!model.second.weight.is_require_grad());
    assert_eq!(model.first.weight.id, twin.first.weight.id);
    assert_eq!(twin.first.weight.val().dtype(), DType::F32);
    // Also of a layer without elements, which is not initialized.
    let none = cast(LinearConfig::new(8, 0).init(device), FloatDType::F64).unwrap();
    let none: Linear = none;
    assert_eq!(none.weight.val().dtype(), DType::F64);
}
