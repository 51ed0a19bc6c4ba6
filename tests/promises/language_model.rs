//! The language model of the examples trains fused as in stock Burn: experts without tokens, ties and chunked loss included.

#[allow(dead_code)] // A part of an example.
#[path = "../../examples/text/model/mod.rs"]
mod model;

use crate::backends::on_every_backend;
use crate::common::*;
use model::{LanguageModel, LanguageModelConfig, Preset};

/// A small one of each part. Two tokens for many experts: some have nothing to do.
fn config() -> LanguageModelConfig {
    LanguageModelConfig::new(13)
        .with_context(6)
        .with_dim(8)
        .with_depth(2)
        .with_heads(4)
        .with_key_value_heads(2)
        .with_window(3)
        .with_experts(5)
        .with_experts_per_token(2)
        .with_expert_dim(6)
}

fn text(device: &Device, length: usize) -> Tensor<2, Int> {
    let tokens = Tensor::<2>::random([1, length + 1], Distribution::Uniform(0.0, 13.0), device);
    tokens.int()
}

/// Trains `config` on `texts` in stock and fused, from the same record.
fn both(
    config: &LanguageModelConfig,
    texts: &[Tensor<2, Int>],
    device: &Device,
) -> [LanguageModel; 3] {
    let initial = config.init(device);
    let copy = || copy(&initial, || config.init(device));
    let loss = |model: &LanguageModel, step: usize| model.losses(texts[step].clone()).total;
    let (steps, adamw) = (texts.len(), AdamWConfig::new());
    let stock = train_stock(copy(), &mut adamw.init(), steps, 1e-3, loss);
    let mut fused = FusedOptimizer::new_ok(copy(), adamw.init());
    train_fused(&mut fused, steps, 1e-3, loss);
    [initial, stock, fused.model()]
}

fn fused_equals_stock(device: &Device) {
    let texts: Vec<_> = (0..3).map(|_| text(device, 6)).collect();
    for tied in [false, true] {
        let [initial, stock, fused] = both(&config().with_tied(tied), &texts, device);
        assert_equal_weights(&stock, &fused);
        let changed = changed(&initial, &fused);
        let outside = |path: &&String| !path.contains(".experts.experts.");
        // Two vectors and five matrices in each of two layers and, at the ends, two or three.
        assert_eq!(
            changed.iter().filter(outside).count(),
            16 - usize::from(tied) + 1
        );
        assert!(changed.len() > 17);
    }
}

fn fused_equals_stock_with_experts_without_tokens(device: &Device) {
    let [initial, stock, fused] = both(&config(), &[text(device, 1)], device);
    assert_equal_weights(&stock, &fused);
    let changed = changed(&initial, &fused);
    let of_experts = changed
        .iter()
        .filter(|path| path.contains(".experts.experts."));
    // Two of five experts in each of two layers, with three weights each.
    assert_eq!(of_experts.count(), 2 * 2 * 3);
}

fn recomputed_layers_and_a_chunked_loss_equal_stock(device: &Device) {
    let loss = LinearCrossEntropyLossConfig::new().with_chunk_size(3);
    let config = config().with_recompute_layers(true).with_loss(Some(loss));
    let texts: Vec<_> = (0..3).map(|_| text(device, 6)).collect();
    let [_, stock, fused] = both(&config, &texts, device);
    assert_equal_weights(&stock, &fused);
}

fn a_model_in_tiles_equals_stock(device: &Device) {
    let texts: Vec<_> = (0..3).map(|_| text(device, 6)).collect();
    for layers in [false, true] {
        let config = config().with_tile(Some(3)).with_recompute_layers(layers);
        let [_, stock, fused] = both(&config, &texts, device);
        assert_equal_weights(&stock, &fused);
    }
}

/// Paths of the parameters that training has changed.
fn changed(before: &LanguageModel, after: &LanguageModel) -> Vec<String> {
    let pairs = weights(before).into_iter().zip(weights(after));
    let changed = pairs.filter(|((_, before), (_, after))| before.as_bytes() != after.as_bytes());
    changed.map(|((path, _), _)| path).collect()
}

on_every_backend!(
    fused_equals_stock,
    fused_equals_stock_with_experts_without_tokens,
    recomputed_layers_and_a_chunked_loss_equal_stock,
    a_model_in_tiles_equals_stock,
);

#[test]
fn a_model_in_tiles_computes_what_it_does_whole() {
    let device = Device::flex().autodiff();
    let text = text(&device, 6);
    let initial = config().init(&device);
    let loss = |tile| {
        let model = copy(&initial, || config().with_tile(tile).init(&device));
        model.losses(text.clone()).total.into_scalar::<f32>()
    };
    let whole = loss(None);
    for tile in [1, 4, 6, 100] {
        let tiled = loss(Some(tile));
        assert!((whole - tiled).abs() < 1e-5, "{whole} and {tiled}");
    }
}

#[test]
fn a_token_sees_its_window_and_nothing_after_it() {
    let device = Device::flex();
    let config = config().with_depth(1).with_experts_per_token(5);
    let model = config.init(&device);
    let text = [1, 2, 3, 4, 5, 6];
    let next = |text: [i32; 6], length| {
        let text = Tensor::<2, Int>::from_data([text], &device);
        let logits = model.next(text.narrow(1, 0, length));
        logits.into_data().iter::<f32>().collect::<Vec<f32>>()
    };
    let expected = next(text, 5);
    let seen = |index: usize| {
        let mut other = text;
        other[index] = 9;
        next(other, 5) != expected
    };
    let seen: Vec<bool> = (0..6).map(seen).collect();
    assert_eq!(seen, [false, false, true, true, true, false]);
}

#[test]
fn the_presets_have_the_parameters_that_they_name() {
    let device = Device::flex();
    // Lazy: nothing is drawn.
    let parameters = |preset: Preset| preset.config(50_257).init(&device).num_params();
    let of_vocabulary = |dim: usize| 2 * 50_257 * dim;
    let [small, medium, billion] = [Preset::Small, Preset::Medium, Preset::Billion].map(parameters);
    assert_eq!((small - of_vocabulary(128)) / 100_000, 17);
    assert_eq!((medium - of_vocabulary(512)) / 1_000_000, 23);
    assert_eq!(billion / 1_000_000, 958);
}
