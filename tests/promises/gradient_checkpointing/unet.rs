//! A network that the feature was not made for: convolutions down and up again, with bridges between
//! them. Its stages have several inputs and outputs, of several ranks and sizes.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};

use super::*;

#[derive(Module, Debug)]
struct Down {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    #[module(skip)]
    mean_of: MeanOf,
}

/// The axes of the means.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MeanOf {
    /// The output of the downward path.
    Pooled,
    /// The output that is pooled and also crosses the bridge: a third use.
    Crossing,
}

impl Down {
    fn init(inputs: usize, outputs: usize, mean_of: MeanOf, device: &Device) -> Self {
        let conv = Conv2dConfig::new([inputs, outputs], [3, 3]);
        let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]);
        Self {
            conv: conv.with_padding(PaddingConfig2d::Same).init(device),
            norm: BatchNormConfig::new(outputs).init(device),
            pool: pool.init(),
            mean_of,
        }
    }

    /// Returns the bridge, the downward output, and the mean of every channel.
    fn forward(&self, x: Tensor<4>) -> (Tensor<4>, Tensor<4>, Tensor<2>) {
        let x = self.norm.forward(self.conv.forward(x)).tanh();
        let pooled = self.pool.forward(x.clone());
        let all = match self.mean_of {
            MeanOf::Pooled => pooled.clone(),
            MeanOf::Crossing => x.clone(),
        };
        let mean = all.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2);
        (x, pooled, mean)
    }
}

#[derive(Module, Debug)]
struct Up {
    up: ConvTranspose2d,
    conv: Conv2d,
}

impl Up {
    fn init(inputs: usize, outputs: usize, device: &Device) -> Self {
        let up = ConvTranspose2dConfig::new([inputs, outputs], [2, 2]);
        let conv = Conv2dConfig::new([2 * outputs, outputs], [1, 1]);
        Self {
            up: up.with_stride([2, 2]).init(device),
            conv: conv.init(device),
        }
    }

    /// From below and from across the bridge, scaled by the mean of the channels if there is one.
    fn forward(&self, (x, bridge, mean): (Tensor<4>, Tensor<4>, Option<Tensor<2>>)) -> Tensor<4> {
        let x = Tensor::cat(vec![self.up.forward(x), bridge], 1);
        let x = self.conv.forward(x);
        match mean {
            Some(mean) => x * mean.unsqueeze_dims(&[2, 3]).add_scalar(1.0),
            None => x.tanh(),
        }
    }
}

#[derive(Module, Debug)]
struct UNet {
    down: Vec<Down>,
    up: Vec<Up>,
}

impl UNet {
    fn init(mean_of: MeanOf, device: &Device) -> Self {
        let down = |inputs, outputs| Down::init(inputs, outputs, mean_of, device);
        Self {
            down: vec![down(2, 4), down(4, 6)],
            up: vec![Up::init(6, 6, device), Up::init(6, 4, device)],
        }
    }

    fn loss(&self, x: Tensor<4>, recompute: bool) -> Tensor<1> {
        let down = |stage: &Down, x| block_if(recompute, stage, x, Down::forward);
        let up = |stage: &Up, inputs| block_if(recompute, stage, inputs, Up::forward);
        let (outer, x, mean) = down(&self.down[0], x);
        let (inner, x, _unused) = down(&self.down[1], x);
        let x = up(&self.up[0], (x, inner, None));
        let x = up(&self.up[1], (x, outer, Some(mean)));
        x.powi_scalar(2).mean()
    }
}

/// Trained in stock, and with recomputed stages.
fn train(mean_of: MeanOf, device: &Device) -> [UNet; 2] {
    let init = || UNet::init(mean_of, device);
    let initial = init();
    let copy = || copy(&initial, init);
    let x = || Tensor::<4>::random([2, 2, 8, 8], Distribution::Default, device);
    let xs: Vec<_> = (0..3).map(|_| x()).collect();
    let loss = |model: &UNet, step: usize| model.loss(xs[step].clone(), false);
    let stock = train_stock(copy(), &mut SgdConfig::new().init(), 3, RATE, loss);
    let mut fused = FusedOptimizer::new_ok(copy(), SgdConfig::new().init());
    train_fused(&mut fused, 3, RATE, |model, step| {
        model.loss(xs[step].clone(), true)
    });
    assert_eq!(fused.last_step().without_gradient, 0);
    [stock.valid(), fused.valid()]
}

fn a_u_net_with_recomputed_stages_trains_as_a_plain_one(device: &Device) {
    let [stock, fused] = train(MeanOf::Pooled, device);
    assert_equal_weights(&stock, &fused);
}

/// Autodiff sums the three terms of its gradient in another order.
fn a_tensor_used_inside_and_outside_of_a_block_gets_the_same_gradient_but_for_rounding(
    device: &Device,
) {
    let [stock, fused] = train(MeanOf::Crossing, device);
    let tolerance = if is_exact(device) { 1e-6 } else { 1e-4 };
    assert_near_weights(&stock, &fused, tolerance, 0.0);
}

on_every_backend!(
    a_u_net_with_recomputed_stages_trains_as_a_plain_one,
    a_tensor_used_inside_and_outside_of_a_block_gets_the_same_gradient_but_for_rounding,
);
