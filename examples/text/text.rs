//! The text to learn.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::prelude::*;
use burn::tensor::TensorData;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SONNETS: &[u8] = include_bytes!("data/sonnets.txt");

/// Bytes, from which random pieces are cut.
pub struct Text {
    bytes: Vec<u8>,
    random: StdRng,
}

impl Text {
    /// Reads the file at `path`, or the sonnets, for pieces of `context` bytes and one.
    pub fn read(path: Option<&Path>, context: usize, seed: u64) -> Result<Self> {
        let bytes = match path {
            Some(path) => {
                std::fs::read(path).with_context(|| format!("{} can't be read", path.display()))?
            }
            None => SONNETS.to_vec(),
        };
        ensure!(
            bytes.len() > context,
            "the text has {} bytes, and a piece of context {context} one more than that",
            bytes.len()
        );
        Ok(Self {
            bytes,
            random: StdRng::seed_from_u64(seed),
        })
    }

    /// Random pieces. Shape: `[batch, context + 1]`.
    pub fn batch(&mut self, batch: usize, context: usize, device: &Device) -> Tensor<2, Int> {
        let length = context + 1;
        let pieces = (0..batch).flat_map(|_| {
            let start = self.random.random_range(0..=self.bytes.len() - length);
            self.bytes[start..start + length].iter()
        });
        let pieces: Vec<i32> = pieces.map(|byte| i32::from(*byte)).collect();
        Tensor::from_data(TensorData::new(pieces, [batch, length]), device)
    }
}
