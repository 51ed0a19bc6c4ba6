//! Text that the model makes up.

use anyhow::Result;
use burn::prelude::*;
use burn::tensor::activation::softmax;
use burn::tensor::{DType, TensorData};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::decoder::Decoder;
use crate::tokens::Tokens;

/// Logits are divided by this before one is drawn: below 1, the likely are likelier.
const TEMPERATURE: f64 = 0.7;

/// Continues `prompt` by up to `tokens` tokens with the inference `model`, until the text ends. It looks back over no
/// more than `length` tokens.
pub fn sample(
    model: &Decoder,
    tokenizer: &Tokens,
    prompt: &[u32],
    tokens: usize,
    length: usize,
    device: &Device,
) -> Result<String> {
    let device = device.clone().inner();
    let mut random = StdRng::seed_from_u64(0);
    let mut text = prompt.to_vec();
    for _ in 0..tokens {
        let seen = &text[text.len().saturating_sub(length)..];
        let numbers: Vec<i64> = seen.iter().map(|token| i64::from(*token)).collect();
        let data = TensorData::new(numbers, [1, seen.len()]);
        let logits = model.next(Tensor::from_data(data, &device));
        let logits = logits.cast(DType::F32).div_scalar(TEMPERATURE);
        let probabilities = softmax(logits, 1).into_data();
        let mut left = random.random_range(0.0..1.0);
        let drawn = probabilities.iter::<f64>().position(|probability| {
            left -= probability;
            left < 0.0
        });
        // Rounding may leave a little.
        let token = drawn.unwrap_or(0) as u32;
        if tokenizer.end() == Some(token) {
            break;
        }
        text.push(token);
    }
    tokenizer.decode(&text[prompt.len()..])
}
