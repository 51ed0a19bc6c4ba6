//! No fault costs a parameter, an optimizer state or an accumulated gradient, and none is silent.

mod accumulated;
mod model;
mod optimizer;
mod reads;

use crate::common::*;
use crate::mlp::Mlp;

const RATE: f64 = 1e-2;

fn flex() -> Device {
    Device::flex().autodiff()
}

fn xs(device: &Device, count: usize) -> Vec<Tensor<2>> {
    (0..count)
        .map(|_| Tensor::random([5, 3], Distribution::Default, device))
        .collect()
}
