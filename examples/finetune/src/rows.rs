//! Rows of tokens of one length, and batches of them.

use std::collections::BTreeSet;

use burn::prelude::*;
use burn::tensor::TensorData;
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};

use crate::decoder::{IGNORED, LAST};
use crate::tokens::Encoded;

/// Rows of `length` tokens and one that follows.
#[derive(Clone, Debug)]
pub struct Rows {
    length: usize,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    tokens: Vec<u32>,
    counted: Vec<bool>,
    /// Tokens of the first document.
    first: usize,
    /// The first token of each document but the first.
    starts: Vec<usize>,
}

/// Rows on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Shape: `[rows, length]`.
    pub tokens: Tensor<2, Int>,
    /// The token that follows on each, or [`IGNORED`], or [`LAST`] at the end of a document. Shape: `[rows, length]`.
    pub targets: Tensor<2, Int>,
    /// The number of targets that count.
    pub counted: usize,
}

impl Rows {
    /// Returns rows of several documents, each in one row if it fits. Longer documents are divided.
    pub fn packed(documents: Vec<Encoded>, length: usize) -> Self {
        let divided = documents.into_iter();
        let mut parts: Vec<Encoded> = divided.flat_map(|it| divide(it, length)).collect();
        parts.retain(Encoded::has_target);
        // Best fit, the longest first: each into the row that it leaves the least room in.
        parts.sort_by_key(|part| std::cmp::Reverse(part.tokens.len()));
        let mut rows: Vec<Row> = Vec::new();
        let mut by_room = BTreeSet::new();
        for part in parts {
            let wanted = part.tokens.len();
            let best = by_room.range((wanted, 0)..).next().copied();
            let (room, index) = match best {
                Some(best) => {
                    by_room.remove(&best);
                    best
                }
                None => {
                    rows.push(Row::default());
                    (length + 1, rows.len() - 1)
                }
            };
            rows[index].push(part);
            by_room.insert((room - wanted, index));
        }
        Self::of(rows, length)
    }

    /// Returns a row for each document, and how many of them were too long and are cut off.
    pub fn padded(documents: Vec<Encoded>, length: usize) -> (Self, usize) {
        let cut = documents.iter().filter(|it| it.tokens.len() > length + 1);
        let cut = cut.count();
        let rows = documents.into_iter().map(|document| {
            let mut row = Row::default();
            row.push(document);
            row
        });
        (Self::of(rows, length), cut)
    }

    /// Rows without a target that counts are left out.
    fn of(rows: impl IntoIterator<Item = Row>, length: usize) -> Self {
        let rows = rows.into_iter().map(|mut row| {
            // The last tokens may be padding.
            row.tokens.resize(length + 1, 0);
            row.counted.resize(length + 1, false);
            row
        });
        let rows = rows.filter(|row| row.counted[1..].contains(&true));
        Self {
            length,
            rows: rows.collect(),
        }
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

    /// Returns the tokens of a row, and which of them count as targets.
    pub fn row(&self, index: usize) -> (&[u32], &[bool]) {
        let row = &self.rows[index];
        (&row.tokens, &row.counted)
    }

    /// Returns the index of a row with the most documents.
    pub fn with_most_documents(&self) -> usize {
        let documents = |row: &usize| self.rows[*row].starts.len();
        (0..self.rows.len()).max_by_key(documents).unwrap_or(0)
    }

    /// Returns the first tokens of the first document, without its last one: after its end there is nothing to continue.
    pub fn beginning(&self, tokens: usize) -> Vec<u32> {
        self.rows.first().map_or(Vec::new(), |row| {
            let end = tokens.min(self.length).min(row.first - 1);
            row.tokens[..end].to_vec()
        })
    }

    /// Returns a hash (FNV-1a over tokens) that tells these rows from others.
    pub fn checksum(&self) -> u64 {
        let numbers = self.rows.iter().flat_map(|row| {
            let tokens = row.tokens.iter().zip(&row.counted);
            let tokens =
                tokens.map(|(token, counted)| u64::from(*token) << 1 | u64::from(*counted));
            tokens.chain(row.starts.iter().map(|start| *start as u64))
        });
        numbers.fold(0xcbf2_9ce4_8422_2325, |hash, number| {
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
            let first = targets.len();
            targets.extend(row.tokens.iter().zip(&row.counted).skip(1).map(target));
            for start in &row.starts {
                targets[first + start - 1] = LAST;
            }
        }
        let counted = targets.iter().filter(|target| **target >= 0).count();
        let shape = [indices.len(), self.length];
        let tensor = |numbers: Vec<i64>| Tensor::from_data(TensorData::new(numbers, shape), device);
        Batch {
            tokens: tensor(tokens),
            targets: tensor(targets),
            counted,
        }
    }
}

impl Row {
    /// Appends a document, which is not empty. Its first token does not follow from the one before, so it does not count.
    fn push(&mut self, document: Encoded) {
        let start = self.tokens.len();
        self.tokens.extend(document.tokens);
        self.counted.extend(document.counted);
        if start > 0 {
            self.starts.push(start);
            self.counted[start] = false;
        } else {
            self.first = self.tokens.len();
        }
    }
}

/// Returns `document` in parts that each fit into a row. A part begins with the last token of the one before.
pub fn divide(document: Encoded, length: usize) -> Vec<Encoded> {
    let all = document.tokens.len();
    if all <= length + 1 {
        return vec![document];
    }
    let starts = (0..all - 1).step_by(length);
    let parts = starts.map(|start| {
        let end = all.min(start + length + 1);
        Encoded {
            tokens: document.tokens[start..end].to_vec(),
            counted: document.counted[start..end].to_vec(),
            crosses: document.crosses,
        }
    });
    parts.collect()
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
            crosses: false,
        }
    }

    #[test]
    fn packed_rows_hold_whole_documents() {
        let documents = vec![document(1..4), document(4..8), document(8..10)];
        let rows = Rows::packed(documents, 4);
        let tokens: Vec<&[u32]> = rows.rows.iter().map(|row| &row.tokens[..]).collect();
        assert_eq!(tokens, [[4, 5, 6, 7, 0], [1, 2, 3, 8, 9]]);
        let batch = rows.batch(&[0, 1], &Device::flex());
        let targets: Vec<i64> = batch.targets.into_data().iter().collect();
        assert_eq!(targets, [5, 6, 7, IGNORED, 2, 3, LAST, 9]);
        assert_eq!(batch.counted, 6);
    }

    #[test]
    fn long_document_is_divided_with_each_target_once() {
        let rows = Rows::packed(vec![document(1..12), document(20..22)], 4);
        let batch = rows.batch(&[0, 1, 2], &Device::flex());
        let targets: Vec<i64> = batch.targets.into_data().iter().collect();
        let expected = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, LAST, 21];
        assert_eq!((rows.len(), targets), (3, expected.to_vec()));
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
    fn beginning_is_within_first_document() {
        let packed = |documents| Rows::packed(documents, 4);
        let padded = |document| Rows::padded(vec![document], 4).0;
        for (rows, expected) in [
            (
                packed(vec![document(1..4), document(8..10)]),
                vec![1_u32, 2],
            ),
            (packed(vec![document(4..8)]), vec![4, 5, 6]),
            (padded(document(1..3)), vec![1]),
            (padded(document(1..9)), vec![1, 2, 3, 4]),
        ] {
            assert_eq!(rows.beginning(24), expected);
            assert_eq!(rows.beginning(1), expected[..1]);
        }
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
