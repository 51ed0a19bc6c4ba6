//! A device that computes in another float type than the host keeps the weights in.

use super::*;
use crate::common::*;

#[derive(Module, Debug)]
struct Normed {
    expand: Linear,
    norm: LayerNorm,
    contract: Linear,
}

impl Normed {
    fn init(device: &Device) -> Self {
        Self {
            expand: LinearConfig::new(6, 12).init(device),
            norm: LayerNormConfig::new(12).init(device),
            contract: LinearConfig::new(12, 6).init(device),
        }
    }
}

#[derive(Module, Debug)]
struct Stack {
    blocks: Vec<Normed>,
}

impl Stack {
    fn init(device: &Device) -> Self {
        Self {
            blocks: (0..3).map(|_| Normed::init(device)).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let blocks = self.blocks.iter();
        let run = |block: &Normed, x: Tensor<2>| {
            let hidden = block.norm.forward(block.expand.forward(x.clone()).tanh());
            x + block.contract.forward(hidden)
        };
        let x = blocks.fold(x, |x, block| gradient_checkpointing(block, x, run));
        x.powi_scalar(2).mean()
    }
}

/// Casts every parameter.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let value = Tensor::from_inner(value.inner().cast(self.0)).require_grad();
        Param::from_mapped_value(id, value, mapper)
    }
}

/// Mixed precision with Burn alone: master weights, a copy to compute with, gradients cast back.
fn train_mixed(mut model: Stack, xs: &[Tensor<2>], dtype: FloatDType) -> Stack {
    let mut optimizer = AdamWConfig::new().init();
    for x in xs {
        let copy = model.clone().map(&mut Cast(dtype));
        let gradients = copy.loss(x.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &copy);
        let gradients = in_types_of(&model, gradients);
        model = optimizer.step(RATE, model, gradients);
    }
    model
}

fn the_host_keeps_the_weights_in_their_own_type(device: &Device) {
    for dtype in [FloatDType::BF16, FloatDType::F16, FloatDType::F64] {
        if !device.supports_dtype(DType::from(dtype)) {
            continue;
        }
        let initial = Stack::init(device);
        let copy = || copy(&initial, || Stack::init(device));
        let x = || Tensor::<2>::random([5, 6], Distribution::Default, device).cast(dtype);
        let xs: Vec<_> = (0..5).map(|_| x()).collect();
        let expected = train_mixed(copy(), &xs, dtype);
        for mode in [
            Offload::Updates,
            Offload::Weights(OffloadedBlocks::All),
            Offload::Weights(OffloadedBlocks::Fraction(0.5)),
        ] {
            let config = FusedConfig::offload(config(device, mode)).with_compute_dtype(Some(dtype));
            let mut fused = FusedOptimizer::new_ok(copy(), AdamWConfig::new().init())
                .with_config_on_ok(config, device);
            for x in &xs {
                fused.step_ok(RATE, |model| {
                    let weight = model.blocks[0].expand.weight.val();
                    assert_eq!(weight.dtype(), DType::from(dtype));
                    model.loss(x.clone())
                });
            }
            assert_equal_weights(&expected, &fused.model());
            let of_inference = fused.valid().blocks[0].expand.weight.val();
            assert_eq!(of_inference.dtype(), DType::from(dtype));
        }
    }
}

fn what_is_not_trained_must_be_in_the_type_already(device: &Device) {
    if !device.supports_dtype(DType::F64) {
        return;
    }
    let fused = FusedOptimizer::new_ok(Network::init(device), AdamConfig::new().init());
    let config = FusedConfig::offload(config(device, Offload::Updates))
        .with_compute_dtype(Some(FloatDType::F64));
    let error = fused
        .with_config_on(config, device)
        .expect_err("statistics in f32");
    let error = error.to_string();
    assert!(
        error.contains("running") && error.contains("F64"),
        "{error}"
    );
}

on_every_backend!(
    the_host_keeps_the_weights_in_their_own_type,
    what_is_not_trained_must_be_in_the_type_already,
);
