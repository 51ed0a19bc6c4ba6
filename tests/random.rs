//! Fused training equals stock Burn bit for bit where random numbers are drawn.
//!
//! A process of its own, one test at a time: the random stream of a backend is shared by all threads.

#[path = "promises/compare.rs"]
mod compare;

use std::sync::Mutex;

use backburn::{FusedOptimizer, GlobalNormClipping};
use burn::module::Module;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

use compare::{assert_changed, assert_equal_weights, copy, train_fused, train_stock};

#[derive(Module, Debug)]
struct Model {
    input: Linear,
    dropout: Dropout,
    encoder: TransformerEncoder,
    output: Linear,
}

impl Model {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(3, 8).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            encoder: TransformerEncoderConfig::new(8, 16, 2, 2).init(device),
            output: LinearConfig::new(8, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<3>) -> Tensor<1> {
        let x = self.dropout.forward(self.input.forward(x));
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        self.output.forward(x).powi_scalar(2).mean()
    }
}

fn dropout_draws_the_numbers_of_stock(device: &Device) {
    let initial = Model::init(device);
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let loss = |model: &Model, _: usize| model.loss(x.clone());

    let stock = copy(&initial, || Model::init(device));
    device.seed(7);
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), 5, 1e-2, loss);

    let fused = copy(&initial, || Model::init(device));
    device.seed(7);
    let mut fused = FusedOptimizer::new(fused, AdamWConfig::new().init());
    train_fused(&mut fused, 5, 1e-2, loss);
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);

    device.seed(8);
    train_fused(&mut fused, 1, 1e-2, loss);
    let after_one_seed = fused.model();
    let mut again = FusedOptimizer::new(stock, AdamWConfig::new().init());
    device.seed(9);
    train_fused(&mut again, 1, 1e-2, loss);
    let differ = compare::weights(&after_one_seed) != compare::weights(&again.model());
    assert!(differ, "another seed gives other numbers");
}

/// A plain step of SGD moves the weights by the clipped gradients: their norm is the maximum only if
/// both passes drop the same elements.
fn both_passes_of_exact_clipping_drop_the_same_elements(device: &Device) {
    let before = Model::init(device);
    let max_norm = 1e-3;
    let mut fused = FusedOptimizer::new(before.clone(), SgdConfig::new().init())
        .with_clipping(GlobalNormClipping::Exact(max_norm));
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    fused.step_repeatable(1.0, |model| model.loss(x.clone()));
    let report = fused.last_step();
    assert!(report.gradient_norm.unwrap() > max_norm, "nothing to clip");

    let after = compare::weights(&fused.model());
    let squares =
        compare::weights(&before)
            .into_iter()
            .zip(after)
            .map(|((_, before), (_, after))| {
                let pairs = before.iter::<f64>().zip(after.iter::<f64>());
                pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>()
            });
    let moved = squares.sum::<f64>().sqrt() / max_norm;
    assert!(
        (moved - 1.0).abs() < 1e-3,
        "moved by {moved} of the maximum"
    );
}

static ALONE: Mutex<()> = Mutex::new(());

#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn on_flex_and_ndarray(test: impl Fn(&Device)) {
    let _alone = ALONE.lock();
    test(&Device::flex().autodiff());
    test(&Device::ndarray().autodiff());
}

#[test]
fn dropout_draws_the_numbers_of_stock_on_flex_and_ndarray() {
    on_flex_and_ndarray(dropout_draws_the_numbers_of_stock);
}

#[test]
fn both_passes_of_exact_clipping_drop_the_same_elements_on_flex_and_ndarray() {
    on_flex_and_ndarray(both_passes_of_exact_clipping_drop_the_same_elements);
}
