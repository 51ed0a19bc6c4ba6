//! Small models, each with a loss over a number of items.

mod autoencoder;
mod image;
mod lora;
mod residual;
mod sequence;

use burn::module::Module;
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor};

pub use autoencoder::*;
pub use image::*;
pub use lora::*;
pub use residual::*;
pub use sequence::*;

/// A model whose loss can be computed for any number of items.
pub trait Kind: Module {
    const NAME: &'static str;
    /// Number of items in a step.
    const BATCH: usize;

    fn init(device: &Device) -> Self;

    fn loss(&self, items: usize) -> Tensor<1>;
}

/// Returns the same numbers in every run, in the type of `like`.
fn input<const D: usize, const E: usize>(shape: [usize; D], like: &Tensor<E>) -> Tensor<D> {
    let count = shape.iter().product::<usize>() as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, &like.device()).float();
    let numbers = numbers.mul_scalar(0.37).sin().reshape(shape);
    numbers.cast(FloatDType::from(like.dtype()))
}

/// Returns the same tokens in every run.
fn tokens(shape: [usize; 2], vocabulary: usize, device: &Device) -> Tensor<2, Int> {
    let count = (shape[0] * shape[1]) as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, device);
    let numbers = numbers.mul_scalar(7919).remainder_scalar(vocabulary as i64);
    numbers.reshape(shape)
}

#[derive(Module, Debug)]
pub struct Residual {
    expand: Linear,
    contract: Linear,
}

impl Residual {
    fn init(dim: usize, inside: usize, device: &Device) -> Self {
        Self {
            expand: LinearConfig::new(dim, inside).init(device),
            contract: LinearConfig::new(inside, dim).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inside = Gelu::new().forward(self.expand.forward(x.clone()));
        x + self.contract.forward(inside)
    }
}
