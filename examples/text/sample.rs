//! Text that the model makes up.

use anyhow::Result;
use burn::prelude::*;
use burn::tensor::activation::softmax;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::model::LanguageModel;
use crate::text::stacked;
use crate::tokens::Vocabulary;

/// Logits are divided by this before one is drawn: below 1, the likely are likelier.
const TEMPERATURE: f64 = 0.7;

/// Lets `model`, which is one for inference, go on after `prompt` for so many tokens. It looks back over no more than
/// `context` tokens.
pub fn sample(
    model: &LanguageModel,
    vocabulary: Vocabulary,
    prompt: &str,
    tokens: usize,
    context: usize,
    device: &Device,
) -> Result<String> {
    let device = device.clone().inner();
    let mut random = StdRng::seed_from_u64(0);
    let mut text = vocabulary.encode(prompt);
    for _ in 0..tokens {
        let seen = &text[text.len().saturating_sub(context)..];
        let logits = model.next(stacked(&[seen], seen.len(), &device));
        let probabilities = softmax(logits.div_scalar(TEMPERATURE), 1).into_data();
        let mut left = random.random_range(0.0..1.0);
        let drawn = probabilities.iter::<f64>().position(|probability| {
            left -= probability;
            left < 0.0
        });
        // Rounding may leave a little.
        text.push(drawn.unwrap_or(0) as u32);
    }
    vocabulary.decode(&text)
}
