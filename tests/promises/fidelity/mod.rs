//! Fused training equals stock Burn bit for bit, from the same record.

mod kinds;
mod layers;
mod optimizers;
mod properties;
mod statistics;
mod training;
mod weights;

use crate::common::*;

const STEPS: usize = 4;
const RATE: f64 = 1e-2;

/// Asserts that stock and fused training have equal bits, and change the parameters for which `trained` returns `true`.
fn assert_fused_equals_stock<M: Module>(
    init: impl Fn() -> M,
    loss: impl Fn(&M, usize) -> Tensor<1>,
    trained: impl Fn(&str) -> bool,
) {
    let optimizer = AdamWConfig::new().init();
    let [initial, stock, fused] = train_both(init, &optimizer, STEPS, RATE, loss);
    assert_equal_weights(&stock, &fused);
    assert_changed(&initial, &fused, trained);
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, device)
}

fn square_mean<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    x.powi_scalar(2).mean()
}

fn token_ids(device: &Device) -> Tensor<2, Int> {
    Tensor::from_data([[1, 2, 3, 0], [4, 0, 5, 2]], device)
}

#[derive(Module, Debug)]
struct TwoHeads {
    body: Linear,
    first: Linear,
    second: Linear,
}

impl TwoHeads {
    fn init(device: &Device) -> Self {
        Self {
            body: LinearConfig::new(3, 4).init(device),
            first: LinearConfig::new(4, 2).init(device),
            second: LinearConfig::new(4, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.body.forward(x);
        square_mean(self.first.forward(x.clone()) - self.second.forward(x) + 1.0)
    }
}
