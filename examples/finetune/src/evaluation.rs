//! The loss on the rows that are held out.

use burn::prelude::*;

use crate::decoder::Decoder;
use crate::rows::Rows;
use crate::step::mean_loss;

/// The most rows to measure the loss on.
pub const ROWS: usize = 64;

/// Rows that are held out.
#[derive(Clone)]
pub struct Evaluation<'a> {
    pub rows: &'a Rows,
    /// Rows in a batch.
    pub batch: usize,
    pub device: Device,
}

impl Evaluation<'_> {
    /// Returns the mean loss of the inference `model`; `None` if no row is held out.
    pub fn loss(&self, model: &Decoder) -> Option<f64> {
        if self.rows.is_empty() {
            return None;
        }
        let count = self.rows.len().min(ROWS);
        let rows: Vec<usize> = (0..count)
            .map(|row| row * self.rows.len() / count)
            .collect();
        let device = self.device.clone().inner();
        let batches = rows.chunks(self.batch);
        let batches = batches.map(|rows| self.rows.batch(rows, &device));
        Some(mean_loss(model, batches))
    }
}
