//! The text transformer of the examples trains with its layers recomputed as without.

#[allow(dead_code)] // A part of an example.
#[path = "../../examples/text/model.rs"]
mod model;

use backburn::FusedOptimizer;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};

use crate::backends::on_every_backend;
use crate::compare::*;
use model::{Transformer, TransformerConfig};

fn recomputed_layers_train_as_plain_ones(device: &Device) {
    let config = TransformerConfig::new(6).with_dim(8).with_depth(2);
    let config = config.with_heads(2).with_dropout(0.0);
    let initial = config.init(device);
    let text = Tensor::<2, Int>::from_data([[84, 111, 32, 98, 101, 44, 32]; 2], device);
    let loss = |model: &Transformer, _: usize| model.loss(text.clone());
    let stock = copy(&initial, || config.init(device));
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), 3, 1e-3, loss);

    let config = config.with_recompute_layers(true);
    let fused = copy(&initial, || config.init(device));
    let mut fused = FusedOptimizer::new(fused, AdamWConfig::new().init());
    train_fused(&mut fused, 3, 1e-3, loss);
    assert_eq!(fused.last_step().without_gradient, 0);
    assert_equal_weights(&stock, &fused.model());
}

on_every_backend!(recomputed_layers_train_as_plain_ones);
