//! One step over micro-batches.

use backburn::{FusedError, FusedOptimizer, GlobalNormClippingConfig};
use burn::prelude::*;

use crate::decoder::Decoder;
use crate::rows::Batch;

/// Trains on `parts`, one after the other; returns the mean loss of the targets that count.
///
/// The loss of each part is divided by the targets of all parts, so that parts of different size count by their targets. (The mean
/// of the means of the parts is another number.)
pub fn step(
    fused: &mut FusedOptimizer<Decoder>,
    rate: f64,
    mut parts: Vec<Batch>,
) -> Result<f64, FusedError> {
    let counted: usize = parts.iter().map(|part| part.counted).sum();
    let loss = |part: Batch| {
        move |model: &Decoder| {
            let sum = model.sum_of_losses(part.tokens.clone(), part.targets.clone());
            sum.div_scalar(counted as f64)
        }
    };
    let last = parts.pop().expect("a step has a part");
    let mut total: Option<Tensor<1>> = None;
    for part in parts {
        let part = fused.accumulate(loss(part))?;
        total = Some(match total {
            Some(total) => total + part,
            None => part,
        });
    }
    let runs_twice = matches!(
        fused.config().clipping,
        Some(GlobalNormClippingConfig::Exact(_))
    );
    let last = match runs_twice {
        true => fused.step_repeatable(rate, loss(last))?,
        false => fused.step(rate, loss(last))?,
    };
    let total = match total {
        Some(total) => total + last,
        None => last,
    };
    Ok(total.into_scalar::<f64>())
}

/// Returns the mean loss of `model`, which is one for inference, on all `batches`.
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
