//! Adapters on a quantized base train as in stock Burn.

use burn::module::{QLora, Quantizer};
use burn::tensor::quantization::{Calibration, QuantValue};

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

    /// Weights in 8 bits, adapters of rank 2.
    fn init() -> Self {
        let stack = Self::dense();
        let device = Device::flex().autodiff();
        let scheme = device.settings().quantization.scheme;
        let scheme = scheme.with_value(QuantValue::Q8S);
        let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
        quantizer.set_param_group(ParamGroup::from_predicate("weight"));
        stack.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer))
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

/// Two batches an update.
pub fn stock(mut model: Stack, groups: &[&[Tensor<2>]]) -> Stack {
    let mut optimizer = AdamConfig::new().init();
    for group in groups {
        let mut sum = GradientsAccumulator::new();
        for x in *group {
            let gradients = model.loss(x.clone()).backward();
            sum.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        model = optimizer.step(RATE, model, sum.grads());
    }
    model
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

/// Fused with every policy in turn, two batches an update.
pub fn with_policies<'a>(
    initial: &'a Stack,
    groups: &'a [&[Tensor<2>]],
) -> impl Iterator<Item = Stack> + 'a {
    let scaling = LossScalingConfig::new().with_initial_scale(256.0);
    let configs = [
        FusedConfig::new(),
        FusedConfig::exact(1e9),
        FusedConfig::scaling(scaling),
    ];
    configs.into_iter().map(move |config| {
        let mut fused = fused(twin(initial), config);
        for group in groups {
            fused.accumulate_ok(|model| model.loss_in_blocks(group[0].clone()));
            fused.step_repeatable_ok(RATE, |model| model.loss_in_blocks(group[1].clone()));
        }
        fused.model()
    })
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

#[test]
fn adapters_on_a_quantized_base_train_as_in_stock() {
    let initial = Stack::init();
    assert_in_codes(&initial);
    let xs = batches(6);
    let singles: Vec<_> = xs.chunks(1).collect();
    let expected = stock(twin(&initial), &singles);
    for in_blocks in [false, true] {
        let mut fused = fused(twin(&initial), FusedConfig::new());
        train(&mut fused, &xs, in_blocks);
        assert_equal_weights(&expected, &fused.model());
        assert_in_codes(&fused.model());
    }
}

#[test]
fn policies_work_on_adapters_of_a_quantized_base() {
    let initial = Stack::init();
    let xs = batches(6);
    let groups: Vec<_> = xs.chunks(2).collect();
    let expected = stock(twin(&initial), &groups);
    for model in with_policies(&initial, &groups) {
        assert_equal_weights(&expected, &model);
    }
}

#[test]
fn a_quantized_base_waits_on_the_host_in_codes() {
    let initial = Stack::init();
    let xs = batches(4);
    let singles: Vec<_> = xs.chunks(1).collect();
    let expected = stock(twin(&initial), &singles);
    for config in waiting() {
        let mut fused = fused(twin(&initial), config);
        train(&mut fused, &xs, true);
        assert_in_codes(&fused.model());
        assert_equal_weights(&expected, &fused.model());
    }
}

#[test]
fn a_run_on_a_quantized_base_resumes_exactly() {
    let [whole, second] = interrupted(&Stack::init(), Stack::init);
    assert_equal_weights(&whole, &second);
}
