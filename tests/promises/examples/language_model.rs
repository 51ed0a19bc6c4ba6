//! The language model of the examples trains fused as in stock Burn, with experts without tokens, tied weights and a
//! chunked loss.

#[allow(dead_code)] // A part of an example.
#[path = "../../../examples/text/model/mod.rs"]
mod model;

use crate::common::*;
use model::{LanguageModel, LanguageModelConfig, Preset};

/// A small config of each part. With two tokens and many experts, some experts have no tokens.
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

/// Asserts that `config` trains on `texts` in stock as fused. Returns the paths of the parameters that changed.
fn assert_matches_stock(
    config: &LanguageModelConfig,
    texts: &[Tensor<2, Int>],
    device: &Device,
) -> Vec<String> {
    let loss = |model: &LanguageModel, step: usize| model.losses(texts[step].clone()).total;
    let (steps, adamw) = (texts.len(), AdamWConfig::new().init());
    let [initial, stock, fused] = train_both(|| config.init(device), &adamw, steps, 1e-3, loss);
    assert_equal_weights(&stock, &fused);
    let pairs = weights(&initial).into_iter().zip(weights(&fused));
    let changed = pairs.filter(|((_, before), (_, after))| before.as_bytes() != after.as_bytes());
    changed.map(|((path, _), _)| path).collect()
}

fn language_model_matches_stock(device: &Device) {
    let texts: Vec<_> = (0..3).map(|_| text(device, 6)).collect();
    for tied in [false, true] {
        let changed = assert_matches_stock(&config().with_tied(tied), &texts, device);
        let outside = |path: &&String| !path.contains(".experts.experts.");
        // Two vectors and five matrices in each of two layers and, at the ends, two or three.
        let of_ends = 3 - usize::from(tied);
        assert_eq!(changed.iter().filter(outside).count(), 14 + of_ends);
        assert!(changed.len() > 17);
    }
}

fn language_model_experts_without_tokens_match_stock(device: &Device) {
    let changed = assert_matches_stock(&config(), &[text(device, 1)], device);
    let of_experts = |path: &&String| path.contains(".experts.experts.");
    // Two of five experts in each of two layers, each with three weights.
    assert_eq!(changed.iter().filter(of_experts).count(), 2 * 2 * 3);
}

fn language_model_in_blocks_chunks_and_tiles_matches_stock(device: &Device) {
    let texts: Vec<_> = (0..3).map(|_| text(device, 6)).collect();
    let tiled = || config().with_tile(Some(3));
    for config in [
        config()
            .with_recompute_layers(true)
            .with_loss_chunk(Some(3)),
        tiled(),
        tiled().with_recompute_layers(true),
    ] {
        assert_matches_stock(&config, &texts, device);
    }
}

on_every_backend!(
    language_model_matches_stock,
    language_model_experts_without_tokens_match_stock,
    language_model_in_blocks_chunks_and_tiles_matches_stock,
);

#[test]
fn language_model_in_tiles_has_loss_of_whole() {
    let device = flex();
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
fn token_sees_its_window_and_nothing_after() {
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
fn presets_have_parameters_that_they_name() {
    let device = Device::flex();
    // Lazy: nothing is drawn.
    let parameters = |preset: Preset| preset.config(50_257).init(&device).num_params();
    let of_vocabulary = |dim: usize| 2 * 50_257 * dim;
    let [small, medium, billion] = [Preset::Small, Preset::Medium, Preset::Billion].map(parameters);
    assert_eq!((small - of_vocabulary(128)) / 100_000, 17);
    assert_eq!((medium - of_vocabulary(512)) / 1_000_000, 23);
    assert_eq!(billion / 1_000_000, 958);
}
