//! Work of a separate process: a training of two steps, or a dry run. Both print their numbers.

use std::time::Instant;

use backburn::FusedOptimizer;
use backburn::memory::keep_pages;
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use flate2::read::GzDecoder;
use tiktoken_rs::r50k_base_singleton;

use crate::BYTES;
use crate::model::{LanguageModel, LanguageModelConfig};
use crate::variant::Variant;

const PLAYS: &[u8] = include_bytes!("../../examples/text/data/shakespeare.txt.gz");
const LEARNING_RATE: f64 = 1e-4;

/// Trains, and prints the parameters, the peak of the bytes, the seconds of the second step, and the losses of both.
pub fn train(variant: &Variant, config: &LanguageModelConfig) {
    keep_pages();
    let device = Device::flex().autodiff();
    let text = text(config, &device);
    let model = variant.model(config, &device);
    let parameters = model.num_params();
    let mut losses = Vec::new();
    let mut seconds = 0.0;
    let mut step = steps(model, variant, text);
    for _ in 0..2 {
        let started = Instant::now();
        losses.push(step().into_scalar::<f64>());
        seconds = started.elapsed().as_secs_f64();
    }
    let peak = BYTES.peak_usage();
    println!("{parameters} {peak} {seconds} {} {}", losses[0], losses[1]);
}

/// Makes steps on one text. Each returns its cross entropy.
pub fn steps(
    model: LanguageModel,
    variant: &Variant,
    text: Tensor<2, Int>,
) -> Box<dyn FnMut() -> Tensor<1>> {
    let mut optimizer = variant.optimizer();
    if !variant.fused {
        let mut model = Some(model);
        return Box::new(move || {
            let current = model.take().expect("the step before has put it back");
            let losses = current.losses(text.clone());
            let gradients = GradientsParams::from_grads(losses.total.backward(), &current);
            model = Some(optimizer.step(LEARNING_RATE, current, gradients));
            losses.cross_entropy
        });
    }
    let mut fused = FusedOptimizer::new(model, optimizer).unwrap();
    Box::new(move || {
        let losses = |model: &LanguageModel| {
            let losses = model.losses(text.clone());
            (losses.total, losses.cross_entropy)
        };
        fused.step(LEARNING_RATE, losses).unwrap().1
    })
}

/// Returns the first piece of the plays. Shape: `[1, context + 1]`.
pub fn text(config: &LanguageModelConfig, device: &Device) -> Tensor<2, Int> {
    let plays = std::io::read_to_string(GzDecoder::new(PLAYS)).expect("it is a text");
    let length = config.context + 1;
    let tokens = r50k_base_singleton().encode_ordinary(&plays);
    let folded = tokens
        .iter()
        .map(|token| *token as i32 % config.vocabulary as i32);
    let folded: Vec<i32> = folded.take(length).collect();
    Tensor::from_data(TensorData::new(folded, [1, length]), device)
}
