//! Convolutions.

use backburn::gradient_checkpointing;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Gelu, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::tensor::{Device, Tensor};

use super::{Kind, input};

#[derive(Module, Debug)]
pub struct Stage {
    conv: Conv2d,
    norm: BatchNorm,
    inner: Conv2d,
}

impl Stage {
    fn init(channels: usize, device: &Device) -> Self {
        let conv =
            Conv2dConfig::new([channels, channels], [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            conv: conv.init(device),
            norm: BatchNormConfig::new(channels).init(device),
            inner: conv.init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let inside = self.norm.forward(self.conv.forward(x.clone()));
        x + self.inner.forward(Relu::new().forward(inside))
    }
}

/// Residual stages of convolutions with batch normalization, each a block, and a large layer at the end.
#[derive(Module, Debug)]
pub struct Convolutional {
    stem: Conv2d,
    stages: Vec<Stage>,
    head: Linear,
}

impl Kind for Convolutional {
    const NAME: &'static str = "convolutional";
    const BATCH: usize = 8;

    fn init(device: &Device) -> Self {
        Self {
            stem: Conv2dConfig::new([3, 16], [3, 3])
                .with_stride([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device),
            stages: (0..3).map(|_| Stage::init(16, device)).collect(),
            head: LinearConfig::new(16 * 16 * 16, 100).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 3, 32, 32], &self.stem.weight.val());
        let run = |stage: &Stage, x| stage.forward(x);
        let stages = self.stages.iter();
        let x = stages.fold(self.stem.forward(x), |x, stage| {
            gradient_checkpointing(stage, x, run)
        });
        self.head
            .forward(x.flatten::<2>(1, 3))
            .powi_scalar(2)
            .mean()
    }
}

/// A U-Net: down, and up again with skip connections.
#[derive(Module, Debug)]
pub struct UNet {
    down: Vec<Conv2d>,
    up: Vec<Conv2d>,
    last: Conv2d,
}

impl Kind for UNet {
    const NAME: &'static str = "U-net";
    const BATCH: usize = 8;

    fn init(device: &Device) -> Self {
        let conv = |from, to, stride| {
            Conv2dConfig::new([from, to], [3, 3])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            down: vec![conv(1, 16, 1), conv(16, 32, 2), conv(32, 64, 2)],
            up: vec![conv(64 + 32, 32, 1), conv(32 + 16, 16, 1)],
            last: conv(16, 1, 1),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let image = input([items, 1, 32, 32], &self.last.weight.val());
        let run = |conv: &Conv2d, x: Tensor<4>| Gelu::new().forward(conv.forward(x));
        let mut skips = Vec::new();
        let mut x = image.clone();
        for conv in &self.down {
            x = gradient_checkpointing(conv, x, run);
            skips.push(x.clone());
        }
        skips.pop();
        for conv in &self.up {
            let [_, channels, height, width] = x.dims();
            let larger = x
                .reshape([items, channels, height, 1, width, 1])
                .expand([items, channels, height, 2, width, 2])
                .reshape([items, channels, 2 * height, 2 * width]);
            let both = Tensor::cat(vec![larger, skips.pop().unwrap()], 1);
            x = gradient_checkpointing(conv, both, run);
        }
        (self.last.forward(x) - image).powi_scalar(2).mean()
    }
}
