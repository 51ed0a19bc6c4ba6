//! Steps from given gradients are the same on every backend as on `flex`.

use super::*;

on_every_backend!(steps_match_those_of_flex, muon_steps_match_those_of_flex);

/// Returns two layers of weights. Only the optimizer computes with them.
fn layers(device: &Device, dtype: FloatDType) -> Vec<Linear> {
    // Blocks of elements in rows, and rows that no block divides.
    let shapes = [[64, 96], [71, 61]];
    let layer = |(seed, shape): (usize, [usize; 2])| {
        let mut layer = LinearConfig::new(shape[0], shape[1]).init(device);
        let bias = layer.bias.take().expect("there is one by default");
        layer.weight = layer.weight.map(|_| numbers(shape, seed, device));
        let bias = bias.map(|_| numbers([1, shape[1]], seed + 10, device).squeeze_dim(0));
        layer.bias = Some(bias);
        layer
    };
    let layers: Vec<Linear> = shapes.into_iter().enumerate().map(layer).collect();
    cast(layers, dtype).unwrap()
}

/// Returns the same numbers on every device.
fn numbers(shape: [usize; 2], seed: usize, device: &Device) -> Tensor<2> {
    let waves =
        Tensor::<1, burn::tensor::Int>::arange(0..(shape[0] * shape[1]) as i64, &Device::flex());
    let waves = waves.float().mul_scalar(0.7 + seed as f32).sin();
    let numbers = waves.powi_scalar(3).reshape(shape).into_data();
    Tensor::from_data(numbers, device)
}

fn trained(
    mut optimizer: ModuleOptimizer,
    device: &Device,
    dtype: FloatDType,
) -> Vec<(String, burn::tensor::TensorData)> {
    let mut model = layers(device, dtype);
    for step in 0..3 {
        let mut gradients = GradientsParams::new();
        for (index, layer) in model.iter().enumerate() {
            let seed = 20 * (step + 1) + index;
            let gradient = |shape| numbers(shape, seed, &device.clone().inner()).mul_scalar(0.01);
            let shape = layer.weight.dims();
            gradients.register(layer.weight.id, gradient(shape).cast(dtype));
            let bias = layer.bias.as_ref().expect("there is one");
            let gradient = gradient([1, shape[1]]).cast(dtype);
            gradients.register(bias.id, gradient.squeeze_dim::<1>(0));
        }
        model = optimizer.step(RATE, model, gradients);
    }
    weights(&model)
}

fn steps_match_those_of_flex(device: &Device) {
    assert_those_of_flex(device, |states, weights, dtype| {
        let mut optimizers = element_wise(states, weights);
        // Results of Burn's own operations differ in the last bit, and so do random numbers derived from them.
        let is_rounded_the_same = weights != WeightFormat::Stochastic;
        if (states, dtype) == (StateFormat::Full, FloatDType::BF16) && is_rounded_the_same {
            let adamw = burn::optim::AdamWConfig::new().build();
            let wrapped = optim::InFormat::new(adamw, weights);
            optimizers.push(("AdamW of Burn's", wrapped.into()));
        }
        optimizers
    });
}

/// (Apart from the others, since Burn's products of matrices take many minutes on CubeCL's runtime for CPUs.)
fn muon_steps_match_those_of_flex(device: &Device) {
    assert_those_of_flex(device, |states, weights, _| vec![muon(states, weights)]);
}

fn assert_those_of_flex(
    device: &Device,
    optimizers: impl Fn(StateFormat, WeightFormat, FloatDType) -> Vec<(&'static str, ModuleOptimizer)>,
) {
    // All steps run before the first comparison, so that a simulated device receives all kernels.
    let mut steps = Vec::new();
    for (states, weights, dtype) in formats(device) {
        for (name, optimizer) in optimizers(states, weights, dtype) {
            let found = trained(optimizer.clone(), device, dtype);
            let expected = trained(optimizer, &Device::flex().autodiff(), dtype);
            let context = format!("{name}, {states:?}, {weights:?}, {dtype:?}");
            steps.push((context, found, expected));
        }
    }
    for (context, found, expected) in steps {
        for ((path, found), (_, expected)) in found.iter().zip(&expected) {
            let mut others = 0;
            for (a, b) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                let distance = (a - b).abs();
                others += usize::from(distance > 1e-4 * RATE + 1e-5 * b.abs());
                // The next bf16, or a neighboring code.
                let is_near = distance <= 0.2 * RATE + 0.01 * b.abs();
                assert!(is_near, "{context}, {path}: {a} for {b}");
            }
            // Numbers that differ in the last bit may be rounded differently.
            let all = found.num_elements();
            assert!(
                others <= 1 + all / 100,
                "{context}, {path}: {others} of {all}"
            );
        }
    }
}
