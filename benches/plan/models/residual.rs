//! Residual blocks of linear layers.

use backburn::gradient_checkpointing;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Kind, Residual, input};

/// Residual blocks, as checkpointed blocks.
#[derive(Module, Debug)]
pub struct Mlp {
    blocks: Vec<Residual>,
}

impl Kind for Mlp {
    const NAME: &'static str = "residual MLP";
    const BATCH: usize = 256;

    fn init(device: &Device) -> Self {
        let block = |_| Residual::init(96, 384, device);
        Self {
            blocks: (0..6).map(block).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 96], &self.blocks[0].expand.weight.val());
        let run = |block: &Residual, x| block.forward(x);
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| gradient_checkpointing(block, x, run));
        x.powi_scalar(2).mean()
    }
}

/// An MLP without gradient checkpointing, with large weights at the end.
#[derive(Module, Debug)]
pub struct Plain {
    blocks: Vec<Residual>,
    head: Linear,
}

impl Kind for Plain {
    const NAME: &'static str = "no blocks";
    const BATCH: usize = 128;

    fn init(device: &Device) -> Self {
        let block = |_| Residual::init(64, 256, device);
        Self {
            blocks: (0..4).map(block).collect(),
            head: LinearConfig::new(64, 4096).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 64], &self.head.weight.val());
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(x).tanh().powi_scalar(2).mean()
    }
}

#[derive(Module, Debug)]
pub struct Experts {
    gate: Linear,
    experts: Vec<Residual>,
}

impl Experts {
    /// Each token goes through all experts, weighted.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let weights = burn::tensor::activation::softmax(self.gate.forward(x.clone()), 1);
        let experts = self.experts.iter().enumerate();
        let outputs = experts
            .map(|(place, expert)| expert.forward(x.clone()) * weights.clone().narrow(1, place, 1));
        outputs.reduce(|a, b| a + b).unwrap()
    }
}

/// Mixtures of experts, each a block.
#[derive(Module, Debug)]
pub struct Mixture {
    layers: Vec<Experts>,
}

impl Kind for Mixture {
    const NAME: &'static str = "mixture of experts";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        let layer = |_| Experts {
            gate: LinearConfig::new(64, 4).init(device),
            experts: (0..4).map(|_| Residual::init(64, 128, device)).collect(),
        };
        Self {
            layers: (0..4).map(layer).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 64], &self.layers[0].gate.weight.val());
        let run = |layer: &Experts, x| layer.forward(x);
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gradient_checkpointing(layer, x, run));
        x.powi_scalar(2).mean()
    }
}

/// A generator and a discriminator, trained at once.
#[derive(Module, Debug)]
pub struct Adversarial {
    generator: Vec<Residual>,
    judge: Vec<Residual>,
    verdict: Linear,
}

impl Kind for Adversarial {
    const NAME: &'static str = "adversarial";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        let blocks = || (0..2).map(|_| Residual::init(96, 192, device)).collect();
        Self {
            generator: blocks(),
            judge: blocks(),
            verdict: LinearConfig::new(96, 1).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let run = |block: &Residual, x| block.forward(x);
        let through = |blocks: &[Residual], x: Tensor<2>| {
            let blocks = blocks.iter();
            blocks.fold(x, |x, block| gradient_checkpointing(block, x, run))
        };
        let real = input([items, 96], &self.verdict.weight.val());
        let made = through(&self.generator, real.clone().mul_scalar(0.5));
        let judged = |x| self.verdict.forward(through(&self.judge, x)).tanh();
        let (of_real, of_made) = (judged(real), judged(made));
        (of_made - of_real).powi_scalar(2).mean()
    }
}

#[derive(Module, Debug)]
pub struct Dropped {
    inner: Residual,
    dropout: Dropout,
}

/// Many residual blocks with dropout.
#[derive(Module, Debug)]
pub struct Deep {
    blocks: Vec<Dropped>,
}

impl Kind for Deep {
    const NAME: &'static str = "deep, with dropout";
    const BATCH: usize = 128;

    fn init(device: &Device) -> Self {
        let block = |_| Dropped {
            inner: Residual::init(64, 160, device),
            dropout: DropoutConfig::new(0.1).init(),
        };
        Self {
            blocks: (0..16).map(block).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 64], &self.blocks[0].inner.expand.weight.val());
        let run = |block: &Dropped, x| block.dropout.forward(block.inner.forward(x));
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| gradient_checkpointing(block, x, run));
        x.powi_scalar(2).mean()
    }
}
