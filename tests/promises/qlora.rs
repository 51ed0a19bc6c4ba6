//! Code that the tests of a quantized base share. The pairs in `tests/pairs` compare its training with stock Burn under every policy.

use crate::common::*;

pub const RATE: f64 = 0.02;
const WIDTH: usize = 16;

#[derive(Module, Debug)]
pub struct Stack {
    pub layers: Vec<Linear>,
}

impl Stack {
    pub fn dense() -> Self {
        let device = Device::flex().autodiff();
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
        Self {
            layers: (0..3).map(layer).collect(),
        }
    }

    pub fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.loss_of(x, run)
    }

    pub fn loss_in_blocks(&self, x: Tensor<2>) -> Tensor<1> {
        self.loss_of(x, |layer, x| gradient_checkpointing(layer, x, run))
    }

    fn loss_of(&self, x: Tensor<2>, block: impl Fn(&Linear, Tensor<2>) -> Tensor<2>) -> Tensor<1> {
        let x = self.layers.iter().fold(x, |x, layer| block(layer, x));
        x.powi_scalar(2).mean()
    }
}

fn run(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    layer.forward(x).tanh()
}

pub fn batches(count: usize) -> Vec<Tensor<2>> {
    let device = Device::flex().autodiff();
    let batch = |_| Tensor::random([4, WIDTH], Distribution::Default, &device);
    (0..count).map(batch).collect()
}

/// One batch an update, with Burn alone.
pub fn stock(model: Stack, xs: &[Tensor<2>]) -> Stack {
    let loss = |model: &Stack, step: usize| model.loss(xs[step].clone());
    train_stock(model, &mut AdamConfig::new().init(), xs.len(), RATE, loss)
}

/// Fused, with what waits on flex.
pub fn fused(model: Stack, config: FusedConfig) -> FusedOptimizer<Stack> {
    FusedOptimizer::new_ok(model, optim::AdamConfig::new().init())
        .with_config_on_ok(config, &Device::flex())
}

/// One batch an update.
pub fn train(fused: &mut FusedOptimizer<Stack>, xs: &[Tensor<2>], in_blocks: bool) {
    for x in xs {
        fused.step_ok(RATE, |model| match in_blocks {
            true => model.loss_in_blocks(x.clone()),
            false => model.loss(x.clone()),
        });
        assert_eq!(fused.last_step().updated, 6);
    }
}

/// Every way to wait on the host.
pub fn waiting() -> [FusedConfig; 3] {
    [
        Offload::States,
        Offload::Updates,
        Offload::Weights(OffloadedBlocks::All),
    ]
    .map(|offload| {
        let offload = OffloadConfig::new(offload)
            .with_host(OffloadHost::NdArray)
            .with_min_elements(1);
        FusedConfig::offload(offload)
    })
}

/// A run, and the same interrupted in the middle.
pub fn interrupted(initial: &Stack, init: impl FnOnce() -> Stack) -> [Stack; 2] {
    let xs = batches(6);
    let mut whole = fused(twin(initial), FusedConfig::new());
    train(&mut whole, &xs, true);
    let mut first = fused(twin(initial), FusedConfig::new());
    train(&mut first, &xs[..3], true);
    let mut second = fused(copy(&first.model(), init), FusedConfig::new());
    second.load_record_ok(first.to_record());
    train(&mut second, &xs[3..], true);
    [whole.model(), second.model()]
}

#[track_caller]
pub fn assert_in_codes(model: &Stack) {
    assert_matches!(model.layers[0].weight.base().dtype(), DType::QFloat(_));
}

/// Another handle to every tensor: codes are not drawn twice.
pub fn twin(model: &Stack) -> Stack {
    model.clone()
}
