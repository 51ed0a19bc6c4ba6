//! In a stock loop the optimizers compute what Burn's do, to the bit.

use backburn_optim as ours;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{self as stock, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor, TensorData};

const LEARNING_RATE: f64 = 0.01;
const STEPS: usize = 4;

/// Trains `model` in a stock loop, and returns the values of its weights.
fn trained(mut model: Linear, mut optimizer: ModuleOptimizer, inputs: &[Tensor<2>]) -> TensorData {
    for x in inputs {
        let loss = model.forward(x.clone()).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    model.weight.val().into_data()
}

#[test]
fn stock_loop_results_equal_those_of_burn() {
    let device = Device::flex().autodiff();
    let model: Linear = LinearConfig::new(67, 31).init(&device);
    let input = |_| Tensor::<2>::random([5, 67], Distribution::Default, &device);
    let inputs: Vec<_> = (0..STEPS).map(input).collect();
    let pairs = [
        (
            "Adam",
            stock::AdamConfig::new().init(),
            ours::AdamConfig::new().init(),
        ),
        (
            "AdamW",
            stock::AdamWConfig::new().init(),
            ours::AdamWConfig::new().init(),
        ),
        (
            "Sgd",
            stock::SgdConfig::new().init(),
            ours::SgdConfig::new().init(),
        ),
        (
            "Lion",
            stock::LionConfig::new().init(),
            ours::LionConfig::new().init(),
        ),
    ];
    for (name, stock, ours) in pairs {
        let [stock, ours] = [stock, ours].map(|it| trained(model.clone(), it, &inputs));
        assert_eq!(stock, ours, "{name}");
    }
}
