//! Autoencoders.

use backburn::gradient_checkpointing;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

use super::{Kind, Residual, input};

/// An autoencoder whose decoder is its encoder, transposed.
#[derive(Module, Debug)]
pub struct Tied {
    encoder: Linear,
    inside: Residual,
}

impl Kind for Tied {
    const NAME: &'static str = "tied autoencoder";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        Self {
            encoder: LinearConfig::new(784, 256).with_bias(false).init(device),
            inside: Residual::init(256, 256, device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 784], &self.encoder.weight.val());
        let code = self.encoder.forward(x.clone());
        let code =
            gradient_checkpointing(&self.inside, code, |block: &Residual, x| block.forward(x));
        let again = code.matmul(self.encoder.weight.val().transpose());
        (again - x).powi_scalar(2).mean()
    }
}

/// The tied autoencoder, with batch normalization of its code.
#[derive(Module, Debug)]
pub struct Normed {
    encoder: Linear,
    norm: BatchNorm,
    inside: Vec<Residual>,
}

impl Kind for Normed {
    const NAME: &'static str = "tied, batch norm";
    const BATCH: usize = 128;

    fn init(device: &Device) -> Self {
        Self {
            encoder: LinearConfig::new(512, 192).with_bias(false).init(device),
            norm: BatchNormConfig::new(192).init(device),
            inside: (0..2).map(|_| Residual::init(192, 256, device)).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 512], &self.encoder.weight.val());
        let code = self.norm.forward(self.encoder.forward(x.clone()));
        let run = |block: &Residual, x| block.forward(x);
        let blocks = self.inside.iter();
        let code = blocks.fold(code, |x, block| gradient_checkpointing(block, x, run));
        let again = code.matmul(self.encoder.weight.val().transpose());
        (again - x).powi_scalar(2).mean()
    }
}

/// A variational autoencoder, which samples.
#[derive(Module, Debug)]
pub struct Variational {
    encoder: Linear,
    mean: Linear,
    deviation: Linear,
    decoder: Linear,
    output: Linear,
}

impl Kind for Variational {
    const NAME: &'static str = "VAE";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            encoder: linear(784, 256),
            mean: linear(256, 32),
            deviation: linear(256, 32),
            decoder: linear(32, 256),
            output: linear(256, 784),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 784], &self.encoder.weight.val());
        let inside = self.encoder.forward(x.clone()).tanh();
        let mean = self.mean.forward(inside.clone());
        let deviation = self.deviation.forward(inside).tanh();
        let noise = Tensor::random_like(&mean, Distribution::Normal(0.0, 1.0));
        let code = mean + deviation * noise;
        let again = self.output.forward(self.decoder.forward(code).tanh());
        (again - x).powi_scalar(2).mean()
    }
}
