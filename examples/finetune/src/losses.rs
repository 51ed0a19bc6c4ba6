//! Losses on the rows that are held out.

use burn::tensor::DType;

use crate::options::Options;
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
    pub fn report(&self, dtype: DType, options: &Options) {
        let (Some(trained), Some(after)) = (self.trained, self.after) else {
            return;
        };
        say!("held-out loss {after:.4} after");
        let gain = self.before.map_or(0.0, |before| before - trained);
        let lost = after - trained;
        // A file in f32 is not rounded. Its loss differs because a merge rounds sums differently.
        if dtype != DType::F32 && gain > 0.0 && lost > ROUNDING_LOSS * gain {
            say!(
                "rounding to {} loses {:.0} % of the gain: before rounding the held-out loss is {trained:.4}. Write with \
                 `--dtype f32`{}",
                dtype.name(),
                100.0 * lost / gain,
                other_advice(options)
            );
        }
    }
}

/// Returns more advice, unless `--fit` or `--merge` excludes `--weights stochastic`.
fn other_advice(options: &Options) -> &'static str {
    match options.fit.is_some() || options.merge {
        true => "",
        false => ", or train with `--weights stochastic` in another folder",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn advice_names_only_options_that_are_accepted() {
        for (more, is_advised) in [
            ("--steps 1", true),
            ("--fit 6GB", false),
            ("--method lora --merge", false),
        ] {
            let line = format!("finetune --model m --data d --output o {more}");
            let advice = other_advice(&Options::parse_from(line.split(' ')));
            assert_eq!(advice.contains("--weights"), is_advised, "{more}");
        }
    }
}
