//! Fidelity for every optimizer of Burn that updates per parameter.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::*;

use super::{RATE, random};
use crate::common::mlp::Mlp;
use crate::common::*;

/// Odd, so that steps of constant size, such as Lion's, can't return a parameter to its start.
const STEPS: usize = 5;

fn assert_match_stock<const N: usize>(device: &Device, optimizers: [(&str, ModuleOptimizer); N]) {
    let batches: Vec<Tensor<2>> = (0..STEPS).map(|_| random([8, 3], device)).collect();
    let loss = |model: &Mlp, step: usize| model.loss(batches[step].clone());
    for (name, optimizer) in optimizers {
        println!("{name}");
        let init = || Mlp::init(device);
        let [initial, stock, fused] = train_both(init, &optimizer, STEPS, RATE, loss);
        assert_equal_weights(&stock, &fused);
        assert_changed(&initial, &fused, |_| true);
    }
}

fn variants_of_adam_match_stock(device: &Device) {
    let clipping = Some(GradientClippingConfig::Norm(0.01));
    let clipped = AdamConfig::new().with_grad_clipping(clipping);
    let optimizers = [
        ("Adam", AdamConfig::new().init()),
        ("AMSGrad", AdamConfig::new().with_amsgrad(true).init()),
        ("AdamW", AdamWConfig::new().init()),
        ("clipping per parameter", clipped.init()),
    ];
    assert_match_stock(device, optimizers);
}

fn other_optimizers_match_stock(device: &Device) {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.1);
    let nesterov = SgdConfig::new().with_momentum(Some(momentum.with_nesterov(true)));
    let decay = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1)));
    let matrices = ParamGroup::from_predicate("put.weight");
    let muon = AdamWConfig::new()
        .init()
        .with_group(matrices, MuonConfig::new().build(), None);
    let optimizers = [
        ("SGD", SgdConfig::new().init()),
        ("SGD with momentum", nesterov.init()),
        ("SGD with weight decay", decay.init()),
        ("AdaGrad", AdaGradConfig::new().init()),
        ("RMSProp", RmsPropConfig::new().with_centered(true).init()),
        ("Adafactor", AdafactorConfig::new().init()),
        ("Adan", AdanConfig::new().init()),
        ("LAMB", LambConfig::new().init()),
        ("Lion", LionConfig::new().init()),
        ("Muon beside AdamW", muon),
    ];
    assert_match_stock(device, optimizers);
}

on_every_backend!(variants_of_adam_match_stock, other_optimizers_match_stock);
