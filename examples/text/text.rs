//! Text of the training.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::prelude::*;
use burn::tensor::TensorData;
use flate2::{Crc, read::GzDecoder};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::tokens::Vocabulary;

const PLAYS: &[u8] = include_bytes!("data/shakespeare.txt.gz");
/// Text of another kind than plays: pages of this project.
pub const PAGES: &str = concat!(
    include_str!("../../docs/architecture.md"),
    include_str!("../../docs/backends.md"),
    include_str!("../../docs/blocks.md"),
    include_str!("../../docs/checkpoints.md"),
    include_str!("../../docs/clipping.md"),
    include_str!("../../docs/devices.md"),
    include_str!("../../docs/formats.md"),
    include_str!("../../docs/memory.md"),
    include_str!("../../docs/offload.md"),
    include_str!("../../docs/planning.md"),
    include_str!("../../docs/policies.md"),
    include_str!("../../docs/quantized.md"),
);

/// Returns plays of Shakespeare.
pub fn plays() -> Result<String> {
    let mut text = String::new();
    GzDecoder::new(PLAYS).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads the text of the file at `path`.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .with_context(|| format!("the text {} can't be read", path.display()))
}

/// Tokens. The last tenth is held out.
pub struct Text {
    tokens: Vec<u32>,
    held_out: usize,
    bytes_per_token: f64,
    context: usize,
    random: StdRng,
}

impl Text {
    /// Splits `text` into tokens, for pieces of `context` + 1 tokens.
    ///
    /// # Errors
    ///
    /// If it is too short: both parts must have such a piece.
    pub fn new(text: &str, vocabulary: Vocabulary, context: usize, seed: u64) -> Result<Self> {
        ensure!(
            !text.trim().is_empty(),
            "the text is empty: name another file with `--text`"
        );
        let tokens = vocabulary.encode(text);
        let held_out = tokens.len() - tokens.len() / 10;
        let shorter = held_out.min(tokens.len() - held_out);
        ensure!(
            shorter > context,
            "the text has {} tokens, but {} are needed, because a tenth is held out and must contain a piece of {context} + 1 \
             tokens: use a longer text, or a smaller `--context`",
            tokens.len(),
            10 * (context + 1)
        );
        Ok(Self {
            bytes_per_token: text.len() as f64 / tokens.len() as f64,
            tokens,
            held_out,
            context,
            random: StdRng::seed_from_u64(seed),
        })
    }

    /// Returns the tokens to train on.
    pub fn train(&self) -> &[u32] {
        &self.tokens[..self.held_out]
    }

    /// Returns the number of tokens, including the held-out ones.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the CRC-32 of the tokens.
    pub fn checksum(&self) -> u32 {
        let mut crc = Crc::new();
        let tokens = self.tokens.iter();
        tokens.for_each(|token| crc.update(&token.to_le_bytes()));
        crc.sum()
    }

    /// Returns the mean length of a token in bytes.
    pub fn bytes_per_token(&self) -> f64 {
        self.bytes_per_token
    }

    /// Draws random pieces to train on. Shape: `[batch, context + 1]`.
    pub fn batch(&mut self, batch: usize, device: &Device) -> Tensor<2, Int> {
        let last = self.held_out - self.context - 1;
        let starts = (0..batch).map(|_| self.random.random_range(0..=last));
        let pieces: Vec<&[u32]> = starts.map(|start| &self.tokens[start..]).collect();
        stacked(&pieces, self.context + 1, device)
    }

    /// Skips the batches that a resumed training has drawn.
    pub fn skip(&mut self, batches: usize, batch: usize) {
        let last = self.held_out - self.context - 1;
        for _ in 0..batches * batch {
            self.random.random_range(0..=last);
        }
    }

    /// Returns up to `count` held-out pieces, evenly spaced.
    pub fn held_out(&self, count: usize) -> Vec<&[u32]> {
        let held_out = &self.tokens[self.held_out..];
        let length = self.context + 1;
        let pieces: Vec<&[u32]> = held_out.chunks_exact(length).collect();
        let every = pieces.len().div_ceil(count.max(1));
        pieces.into_iter().step_by(every).collect()
    }
}

/// Stacks the beginnings of `pieces` to a batch. Shape: `[pieces, length]`.
pub fn stacked(pieces: &[&[u32]], length: usize, device: &Device) -> Tensor<2, Int> {
    let tokens = pieces.iter().flat_map(|piece| &piece[..length]);
    let tokens: Vec<i32> = tokens.map(|token| *token as i32).collect();
    Tensor::from_data(TensorData::new(tokens, [pieces.len(), length]), device)
}
