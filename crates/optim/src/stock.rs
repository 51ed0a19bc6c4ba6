//! Comparison with Burn's optimizers, in tests.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor, TensorData};

const LEARNING_RATE: f64 = 0.01;
const STEPS: usize = 4;

/// Trains `model` in a stock loop, and returns the values of its weight.
fn trained(mut model: Linear, mut optimizer: ModuleOptimizer, inputs: &[Tensor<2>]) -> TensorData {
    for x in inputs {
        let loss = model.forward(x.clone()).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    model.weight.val().into_data()
}

/// Panics if a matrix has other values after some steps of `ours` than of `stock`.
#[track_caller]
pub(super) fn assert_equal_steps(stock: ModuleOptimizer, ours: ModuleOptimizer) {
    let device = Device::flex().autodiff();
    let model: Linear = LinearConfig::new(67, 31).with_bias(false).init(&device);
    let input = |_| Tensor::<2>::random([5, 67], Distribution::Default, &device);
    let inputs: Vec<_> = (0..STEPS).map(input).collect();
    let [stock, ours] = [stock, ours].map(|it| trained(model.clone(), it, &inputs));
    assert_eq!(stock, ours);
}
