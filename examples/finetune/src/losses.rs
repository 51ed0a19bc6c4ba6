//! Losses on the rows that are held out.

use burn::tensor::DType;

use crate::print::say;

/// The share of the gain that rounding may lose without a warning.
const ROUNDING_LOSS: f64 = 0.1;

/// Losses before and after a training.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    pub before: Option<f64>,
    /// Loss of the trained weights.
    pub trained: Option<f64>,
    /// Loss of the written weights.
    pub after: Option<f64>,
}

impl Losses {
    /// Prints the loss of the weights written in `dtype`, and if rounding to it has lost more than a tenth of the gain.
    pub fn report(&self, dtype: DType) {
        let (Some(trained), Some(after)) = (self.trained, self.after) else {
            return;
        };
        say!("held-out loss {after:.4} after");
        let gain = self.before.map_or(0.0, |before| before - trained);
        let lost = after - trained;
        if gain > 0.0 && lost > ROUNDING_LOSS * gain {
            say!(
                "rounding to {} loses {:.0} % of the gain: before rounding the held-out loss is {trained:.4}. Write with `--dtype f32`, \
                 or train with `--weights stochastic`",
                dtype.name(),
                100.0 * lost / gain
            );
        }
    }
}
