//! One step over micro-batches.

use backburn::{FusedError, FusedOptimizer};

use crate::decoder::Decoder;
use crate::rows::Batch;

/// Trains one step on `parts`. Returns the mean loss of all targets that count.
pub fn step(
    fused: &mut FusedOptimizer<Decoder>,
    rate: f64,
    parts: Vec<Batch>,
) -> Result<f64, FusedError> {
    let parts = parts.into_iter().map(|part| {
        let counted = part.counted;
        (part, counted)
    });
    let loss = fused.step_in_parts(rate, parts, |model, part| {
        let sum = model.sum_of_losses(part.tokens.clone(), part.targets.clone());
        sum.div_scalar(part.counted as f64)
    })?;
    Ok(loss.into_scalar::<f64>())
}

/// Returns the mean loss of the inference `model` on all `batches`.
pub fn mean_loss(model: &Decoder, batches: impl Iterator<Item = Batch>) -> f64 {
    let (mut sum, mut counted) = (0.0, 0);
    for batch in batches {
        sum += model
            .sum_of_losses(batch.tokens, batch.targets)
            .into_scalar::<f64>();
        counted += batch.counted;
    }
    sum / counted as f64
}
