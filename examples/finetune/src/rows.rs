//! Rows of tokens of one length, and batches of them.

use anyhow::{Result, ensure};
use burn::prelude::*;
use burn::tensor::TensorData;
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};

use crate::decoder::IGNORED;
use crate::tokens::Encoded;

/// Rows of `length` tokens and one that follows.
#[derive(Clone, Debug)]
pub struct Rows {
    length: usize,
    rows: Vec<Encoded>,
}

/// Rows on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Shape: `[rows, length]`.
    pub tokens: Tensor<2, Int>,
    /// The token that follows on each, or [`IGNORED`]. Shape: `[rows, length]`.
    pub targets: Tensor<2, Int>,
    /// The number of targets that count.
    pub counted: usize,
}

impl Rows {
    /// Returns `documents` one after the other, cut into rows.
    pub fn packed(documents: Vec<Encoded>, length: usize) -> Self {
        let mut whole = Encoded::default();
        for mut document in documents {
            // What begins a text does not follow from the one before.
            if let Some(first) = document.counted.first_mut() {
                *first = false;
            }
            whole.tokens.append(&mut document.tokens);
            whole.counted.append(&mut document.counted);
        }
        let starts = (0..whole.tokens.len().saturating_sub(1)).step_by(length);
        let rows = starts.map(|start| {
            let end = whole.tokens.len().min(start + length + 1);
            row(
                &whole.tokens[start..end],
                &whole.counted[start..end],
                length,
            )
        });
        Self::of(rows, length)
    }

    /// Returns a row for each document, and how many of them were too long and are cut off.
    pub fn padded(documents: Vec<Encoded>, length: usize) -> (Self, usize) {
        let cut = documents.iter().filter(|it| it.tokens.len() > length + 1);
        let cut = cut.count();
        let rows = documents.iter().map(|document| {
            let end = document.tokens.len().min(length + 1);
            row(&document.tokens[..end], &document.counted[..end], length)
        });
        (Self::of(rows, length), cut)
    }

    /// Rows without a target that counts are left out.
    fn of(rows: impl Iterator<Item = Encoded>, length: usize) -> Self {
        let rows = rows
            .filter(|row| row.counted[1..].contains(&true))
            .collect();
        Self { length, rows }
    }

    /// Divides them into those to train on and a share that is held out.
    ///
    /// # Errors
    ///
    /// If there is nothing to train on.
    pub fn split(mut self, held_out: f64) -> Result<(Self, Self)> {
        ensure!(
            !self.rows.is_empty(),
            "the data has no token that counts: it is too short"
        );
        let wanted = (self.rows.len() as f64 * held_out).ceil() as usize;
        let rest = self
            .rows
            .split_off(self.rows.len() - wanted.min(self.rows.len() - 1));
        let held_out = Self {
            length: self.length,
            rows: rest,
        };
        Ok((self, held_out))
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the first tokens of the first row.
    pub fn beginning(&self, tokens: usize) -> Vec<u32> {
        let first = self.rows.first();
        first.map_or(Vec::new(), |row| {
            row.tokens[..tokens.min(self.length)].to_vec()
        })
    }

    /// Returns a hash (FNV-1a over tokens) that tells these rows from others.
    pub fn checksum(&self) -> u64 {
        let tokens = self
            .rows
            .iter()
            .flat_map(|row| row.tokens.iter().zip(&row.counted));
        tokens.fold(0xcbf2_9ce4_8422_2325, |hash, (token, counted)| {
            let number = u64::from(*token) << 1 | u64::from(*counted);
            (hash ^ number).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Returns the rows at `indices` on `device`.
    pub fn batch(&self, indices: &[usize], device: &Device) -> Batch {
        let mut tokens = Vec::with_capacity(indices.len() * self.length);
        let mut targets = Vec::with_capacity(indices.len() * self.length);
        for row in indices.iter().map(|index| &self.rows[*index]) {
            tokens.extend(
                row.tokens[..self.length]
                    .iter()
                    .map(|token| i64::from(*token)),
            );
            let target = |(token, counted): (&u32, &bool)| match counted {
                true => i64::from(*token),
                false => IGNORED,
            };
            targets.extend(row.tokens.iter().zip(&row.counted).skip(1).map(target));
        }
        let counted = targets.iter().filter(|target| **target != IGNORED).count();
        let shape = [indices.len(), self.length];
        let tensor = |numbers: Vec<i64>| Tensor::from_data(TensorData::new(numbers, shape), device);
        Batch {
            tokens: tensor(tokens),
            targets: tensor(targets),
            counted,
        }
    }
}

/// Returns a row of `length + 1` tokens. The last ones may be padding.
fn row(tokens: &[u32], counted: &[bool], length: usize) -> Encoded {
    let mut row = Encoded {
        tokens: tokens.to_vec(),
        counted: counted.to_vec(),
    };
    row.tokens.resize(length + 1, 0);
    row.counted.resize(length + 1, false);
    row
}

/// The order in which rows are trained on: each once, in another order in each epoch.
#[derive(Clone, Debug)]
pub struct Order {
    rows: usize,
    seed: u64,
}

impl Order {
    pub fn new(rows: usize, seed: u64) -> Self {
        Self { rows, seed }
    }

    /// Returns the rows of a step. It depends on nothing else, so a resumed training sees what it would have seen.
    pub fn of_step(&self, step: usize, batch: usize) -> Vec<usize> {
        let positions = step * batch..(step + 1) * batch;
        let mut known: Option<(usize, Vec<usize>)> = None;
        let rows = positions.map(|position| {
            let epoch = position / self.rows;
            let order = match known.take() {
                Some((of, order)) if of == epoch => order,
                _ => self.of_epoch(epoch),
            };
            let row = order[position % self.rows];
            known = Some((epoch, order));
            row
        });
        rows.collect()
    }

    fn of_epoch(&self, epoch: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.rows).collect();
        let seed = self.seed.wrapping_add(epoch as u64);
        order.shuffle(&mut StdRng::seed_from_u64(seed));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(tokens: std::ops::Range<u32>) -> Encoded {
        let tokens: Vec<u32> = tokens.collect();
        Encoded {
            counted: vec![true; tokens.len()],
            tokens,
        }
    }

    #[test]
    fn packed_rows_overlap_by_one_token() {
        let rows = Rows::packed(vec![document(1..4), document(4..8)], 3);
        let tokens: Vec<&[u32]> = rows.rows.iter().map(|row| &row.tokens[..]).collect();
        assert_eq!(tokens, [[1, 2, 3, 4], [4, 5, 6, 7]]);
        let batch = rows.batch(&[0, 1], &Device::flex());
        let targets: Vec<i64> = batch.targets.into_data().iter().collect();
        assert_eq!(targets, [2, 3, IGNORED, 5, 6, 7]);
        assert_eq!(batch.counted, 5);
    }

    #[test]
    fn padded_rows_hold_one_document() {
        let (rows, cut) = Rows::padded(vec![document(1..3), document(1..9)], 4);
        assert_eq!(cut, 1);
        assert_eq!(rows.rows[0].tokens, [1, 2, 0, 0, 0]);
        assert_eq!(rows.rows[0].counted, [true, true, false, false, false]);
        assert_eq!(rows.rows[1].tokens, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn order_has_each_row_once_per_epoch() {
        let order = Order::new(10, 7);
        let mut seen: Vec<usize> = (0..5).flat_map(|step| order.of_step(step, 4)).collect();
        for epoch in seen.chunks_mut(10) {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(order.of_epoch(0), order.of_epoch(1));
    }
}
