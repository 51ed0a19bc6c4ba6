//! No fault loses a parameter, an optimizer state or an accumulated gradient, and every fault is reported.

mod accumulated;
mod misuse;
mod model;
mod optimizer;
mod reads;

use crate::common::mlp::Mlp;
use crate::common::*;

const RATE: f64 = 1e-2;

fn xs(device: &Device, count: usize) -> Vec<Tensor<2>> {
    randoms(count, [5, 3], device)
}

fn copied(initial: &Mlp) -> Mlp {
    copy(initial, || Mlp::init(&initial.devices()[0]))
}

fn adamw(model: Mlp) -> FusedOptimizer<Mlp> {
    FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap()
}

fn sgd(model: Mlp) -> FusedOptimizer<Mlp> {
    FusedOptimizer::new(model, SgdConfig::new().init()).unwrap()
}

fn loss(model: &Mlp, x: &Tensor<2>) -> Tensor<1> {
    model.loss(x.clone())
}

fn panics(model: &Mlp, x: &Tensor<2>) -> Tensor<1> {
    let loss = model.loss(x.clone());
    assert!(x.dims()[0] > 5, "too few");
    loss
}
