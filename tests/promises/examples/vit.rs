//! The vision transformer of the examples has as many parameters as that of torchvision, and trains the same with and
//! without recomputed blocks.

#[allow(dead_code)] // A part of an example.
#[path = "../../../examples/vit/model.rs"]
mod model;

use burn::nn::attention::MhaInput;
use burn::tensor::Tolerance;

use crate::common::*;
use model::{Vit, VitConfig};

/// The counts that torchvision documents for `vit_b_16` and `vit_l_16`.
#[test]
fn vit_presets_have_parameter_counts_of_torchvision() {
    let count = |config: VitConfig| config.init(&Device::flex()).num_params();
    assert_eq!(count(VitConfig::vit_b_16()), 86_567_656);
    assert_eq!(count(VitConfig::vit_l_16()), 304_326_632);
}

#[test]
fn block_attention_equals_module_of_burn() {
    let device = Device::flex();
    let block = VitConfig::digits().init_block(&device);
    let x = Tensor::<3>::random([2, 17, 64], Distribution::Default, &device);
    let expected = block.attention.forward(MhaInput::self_attn(x.clone()));
    let (expected, found) = (expected.context.into_data(), block.attend(x).into_data());
    found.assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
}

fn vit_with_recomputed_blocks_trains_as_plain(device: &Device) {
    let config = VitConfig::digits().with_dropout(0.0);
    let initial = config.init(device);
    let images = Tensor::<4>::random([3, 1, 8, 8], Distribution::Default, device);
    let loss = |model: &Vit, _: usize| model.forward(images.clone()).powi_scalar(2).mean();
    let stock = copy(&initial, || config.init(device));
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), 3, 1e-3, loss);

    let config = config.with_recompute_blocks(true);
    let fused = copy(&initial, || config.init(device));
    let mut fused = FusedOptimizer::new(fused, AdamWConfig::new().init()).unwrap();
    train_fused(&mut fused, 3, 1e-3, loss);
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

on_every_backend!(vit_with_recomputed_blocks_trains_as_plain);
