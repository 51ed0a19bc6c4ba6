//! Inputs that make low-bit formats fail: gradients that are mostly zero, tiny gradients and learning rates, and NaN
//! and infinity, which must not be hidden.

use burn::tensor::bf16;

use super::*;

on_every_backend!(
    sparse_gradients_stay_finite_and_move,
    gradients_near_zero_move_weights_as_in_f32,
    small_learning_rates_move_weights_as_in_f32,
    gradient_not_finite_spreads_only_in_its_group,
    small_parameters_keep_full_states,
    infinite_weights_without_penalty_stay_infinite,
);

/// Returns a model that has only a weight of 64 x 72 elements.
fn weight(device: &Device, dtype: FloatDType) -> Linear {
    let linear = LinearConfig::new(64, 72).with_bias(false).init(device);
    cast(linear, dtype).unwrap()
}

fn step(fused: &mut FusedOptimizer<Linear>, rate: f64, gradient: &Tensor<2>) {
    fused
        .step(rate, |model| {
            let value = model.weight.val();
            let gradient = gradient.clone().cast(FloatDType::from(value.dtype()));
            (value * gradient).sum()
        })
        .unwrap();
}

fn numbers(model: &Linear) -> Vec<f64> {
    model.weight.val().into_data().iter::<f64>().collect()
}

fn adamw(states: StateFormat, weights: WeightFormat, epsilon: f32) -> ModuleOptimizer {
    let config = optim::AdamWConfig::new().with_weight_decay(0.0);
    let config = config.with_epsilon(epsilon).with_state_format(states);
    config.with_weight_format(weights).init()
}

/// Returns the total distance of all weights from `before`.
fn moved(before: &[f64], after: &[f64]) -> f64 {
    let moved = before.iter().zip(after).map(|(a, b)| (a - b).abs());
    moved.sum()
}

/// Trains in f32 and in each of the formats in which updates below a 256th of the weight count, with the same
/// gradients. Returns how far they move, in multiples of f32.
fn in_multiples_of_f32(
    device: &Device,
    rate: f64,
    epsilon: f32,
    steps: usize,
    gradient: impl Fn(usize) -> Tensor<2>,
) -> Vec<(String, f64)> {
    // All trainings start from weights that bf16 can represent.
    let initial = map_values(weight(device, FloatDType::F32), |_, value| {
        let rounded = value.to_data().convert::<bf16>().convert::<f32>();
        Tensor::from_data(rounded, &value.device())
    });
    let train = |states, weights, dtype| {
        let model = cast(initial.clone(), dtype).unwrap();
        let before = numbers(&model);
        let mut fused = FusedOptimizer::new(model, adamw(states, weights, epsilon)).unwrap();
        for index in 0..steps {
            step(&mut fused, rate, &gradient(index));
        }
        let after = numbers(&fused.full_precision_model());
        let is_finite = after.iter().all(|x| x.is_finite());
        assert!(is_finite, "{states:?} {weights:?}");
        moved(&before, &after)
    };
    let f32 = train(StateFormat::Full, WeightFormat::Plain, FloatDType::F32);
    let mut found = Vec::new();
    for states in [StateFormat::Bits8, StateFormat::Bits4] {
        for (weights, dtype) in [
            (WeightFormat::Plain, FloatDType::F32),
            (WeightFormat::Split24, FloatDType::BF16),
        ] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            let moved = train(states, weights, dtype);
            found.push((format!("{states:?} {weights:?} {dtype:?}"), moved / f32));
        }
    }
    found
}

/// Panics unless states in 8 bits move as far as f32 but for this part, and states in 4 bits but for 0.3.
#[track_caller]
fn assert_moved(name: &str, moved: f64, in_8_bits: f64) {
    let near = if name.contains("Bits8") {
        in_8_bits
    } else {
        0.3
    };
    assert!((moved - 1.0).abs() < near, "{name}: {moved} of f32");
}

fn sparse_gradients_stay_finite_and_move(device: &Device) {
    let inner = device.clone().inner();
    let gradient = |index: usize| {
        let random = Tensor::<2>::random([64, 72], Distribution::Normal(0.0, 1.0), &inner);
        let rare = Tensor::<2>::random([64, 72], Distribution::Default, &inner);
        let gradient = random.mask_fill(rare.greater_elem(0.02), 0.0);
        let spike = 10_f32.powi(index as i32 % 7 - 3);
        Tensor::from_inner(gradient * spike)
    };
    let gradients: Vec<_> = (0..60).map(gradient).collect();
    for (name, moved) in in_multiples_of_f32(device, 1e-3, 1e-8, 60, |i| gradients[i].clone()) {
        assert!((0.3..3.0).contains(&moved), "{name}: {moved} of f32");
    }
}

fn gradients_near_zero_move_weights_as_in_f32(device: &Device) {
    let inner = device.clone().inner();
    let tiny = Distribution::Normal(0.0, 1e-8);
    let gradients = [(); 30].map(|()| Tensor::from_inner(Tensor::random([64, 72], tiny, &inner)));
    for (name, moved) in in_multiples_of_f32(device, 1e-3, 1e-12, 30, |i| gradients[i].clone()) {
        assert_moved(&name, moved, 0.02);
    }
}

fn small_learning_rates_move_weights_as_in_f32(device: &Device) {
    let ones = Tensor::<2>::ones([64, 72], &device.clone().inner());
    let gradient = Tensor::from_inner(ones);
    for (name, moved) in in_multiples_of_f32(device, 1e-7, 1e-8, 50, |_| gradient.clone()) {
        assert_moved(&name, moved, 0.1);
    }
}

fn gradient_not_finite_spreads_only_in_its_group(device: &Device) {
    for wrong in [f32::NAN, f32::INFINITY] {
        for (states, weights, dtype) in formats(device) {
            for (name, optimizer) in element_wise(states, weights) {
                let mut fused = FusedOptimizer::new(weight(device, dtype), optimizer).unwrap();
                let mut gradient = vec![1.0; 64 * 72];
                gradient[77] = wrong;
                let data = TensorData::new(gradient, [64, 72]);
                let bad = Tensor::from_inner(Tensor::<2>::from_data(data, &device.clone().inner()));
                let good = Tensor::from_inner(Tensor::ones([64, 72], &device.clone().inner()));
                step(&mut fused, RATE, &bad);
                step(&mut fused, RATE, &good);
                step(&mut fused, RATE, &good);
                let after = numbers(&fused.model());
                let name = format!("{name} {states:?} {weights:?} {dtype:?} {wrong}");
                // Burn's Lion uses the sign of infinity, and zero as the sign of NaN.
                let is_lion = name.starts_with("Lion") && states == StateFormat::Full;
                assert!(is_lion || !after[77].is_finite(), "{name}");
                // Other groups are not affected.
                let others = after[..64].iter().chain(&after[128..]);
                assert!(others.copied().all(f64::is_finite), "{name}");
            }
        }
    }
}

fn small_parameters_keep_full_states(device: &Device) {
    let model = || LinearConfig::new(8, 8).init(device);
    let initial: Linear = model();
    let x = Tensor::<2>::ones([2, 8], device);
    let train = |states| {
        let optimizer = optim::AdamWConfig::new().with_state_format(states).init();
        let mut fused = FusedOptimizer::new(copy(&initial, model), optimizer).unwrap();
        for _ in 0..5 {
            fused
                .step(RATE, |model| model.forward(x.clone()).powi_scalar(2).mean())
                .unwrap();
        }
        fused.model()
    };
    assert_equal_weights(&train(StateFormat::Full), &train(StateFormat::Bits4));
}

#[test]
fn small_parameters_in_bf16_have_states_in_f32() {
    let device = Device::flex().autodiff();
    let model = cast(LinearConfig::new(8, 8).init(&device), FloatDType::BF16).unwrap();
    let optimizer = optim::AdamWConfig::new().with_state_format(StateFormat::Bits8);
    let estimate = backburn::MemoryEstimate::new(&model, &optimizer.init());
    assert_eq!(estimate.parameters, 2 * (64 + 8));
    assert_eq!(estimate.optimizer_state, 2 * 4 * (64 + 8));
}

fn infinite_weights_without_penalty_stay_infinite(device: &Device) {
    for states in [StateFormat::Full, StateFormat::Bits8] {
        let config = optim::SgdConfig::new().with_state_format(states);
        let mut optimizer = config.init();
        let mut layer = LinearConfig::new(64, 64).with_bias(false).init(device);
        for gradient in [f32::INFINITY, 1.0] {
            let gradient = Tensor::<2>::full([64, 64], gradient, &device.clone().inner());
            let mut gradients = GradientsParams::new();
            gradients.register(layer.weight.id, gradient);
            layer = optimizer.step(RATE, layer, gradients);
        }
        let mut numbers = numbers(&layer).into_iter();
        assert!(numbers.all(|weight| weight == f64::NEG_INFINITY));
    }
}
