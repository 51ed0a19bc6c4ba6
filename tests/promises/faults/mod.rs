//! No fault costs a parameter, an optimizer state or an accumulated gradient, and none is silent.

mod accumulated;
mod model;
mod optimizer;
mod reads;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

use crate::compare::*;

const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Net {
    input: Linear,
    output: Linear,
}

impl Net {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(3, 4).init(device),
            output: LinearConfig::new(4, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.output.forward(self.input.forward(x).tanh());
        x.powi_scalar(2).mean()
    }
}

fn flex() -> Device {
    Device::flex().autodiff()
}

fn xs(device: &Device, count: usize) -> Vec<Tensor<2>> {
    (0..count)
        .map(|_| Tensor::random([5, 3], Distribution::Default, device))
        .collect()
}

/// What `work` panics with.
#[track_caller]
fn panic_of<R>(work: impl FnOnce() -> R) -> String {
    let payload = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(_) => panic!("there is no panic"),
        Err(payload) => payload,
    };
    match payload.downcast_ref::<String>() {
        Some(message) => message.clone(),
        None => payload.downcast_ref::<&str>().unwrap().to_string(),
    }
}
