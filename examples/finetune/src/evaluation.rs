//! The loss on the rows that are held out.

use anyhow::Result;
use backburn::FusedOptimizer;
use burn::prelude::*;
use burn::tensor::FloatDType;

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
    /// Returns the loss of a training of weights in this type, and the training. All weights of a model are cast to f32, as other
    /// programs do; the base of adapters is not.
    pub fn loss_in_f32(
        &self,
        fused: FusedOptimizer<Decoder>,
        weights: FloatDType,
    ) -> Result<(FusedOptimizer<Decoder>, Option<f64>)> {
        let has_type = weights == FloatDType::F32 || fused.num_frozen() > 0;
        if self.rows.is_empty() || has_type {
            let loss = self.loss(&fused.valid());
            return Ok((fused, loss));
        }
        let config = fused.config().clone();
        let in_f32 = config.clone().with_compute_dtype(Some(FloatDType::F32));
        let fused = fused.with_config(in_f32)?;
        let loss = self.loss(&fused.valid());
        Ok((fused.with_config(config)?, loss))
    }

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
