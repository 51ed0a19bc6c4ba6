//! The length of a training: rows in a step, and steps.

use anyhow::{Context, Result, ensure};

use crate::counts::Counts;
use crate::options::{BATCH, Options};
use crate::print::{count, say};

/// A training of fewer steps is short.
const FEW_STEPS: usize = 20;

impl Options {
    /// Returns these options for data with `rows` rows to train on. A step has no more rows than the data.
    pub fn for_rows(&self, rows: usize) -> Result<Self> {
        ensure!(
            self.batch <= rows.max(BATCH),
            "`--batch` is {}, and the data has {} to train on: use at most that many",
            self.batch,
            count(rows, "row")
        );
        let mut options = self.clone();
        if self.batch > rows {
            say!(
                "the data has {} to train on, so a step has {rows} instead of {}",
                count(rows, "row"),
                self.batch
            );
            options.batch = rows;
            options.accumulate = self.accumulate.min(rows);
        }
        Ok(options)
    }

    /// Returns the number of steps of a training on `rows`.
    pub fn steps(&self, rows: usize) -> Result<usize> {
        let all = rows.checked_mul(self.epochs);
        let all = all.with_context(|| format!("`--epochs` is {}: use fewer", self.epochs))?;
        let steps = self.steps.unwrap_or(all.div_ceil(self.batch));
        let fits = steps.checked_mul(self.batch).is_some();
        ensure!(fits, "`--steps` is {steps}: use fewer");
        Ok(steps)
    }
}

/// Prints the length of the training, and the share of the weights that it trains.
pub fn report(options: &Options, counts: Counts, length: usize, steps: usize) {
    let tokens = (steps as u64).saturating_mul((options.batch * length) as u64);
    say!(
        "{} with {} each, {tokens} tokens in all; {} of {} weights are trained ({:.2} %)",
        count(steps, "step"),
        count(options.batch, "row"),
        counts.trained,
        counts.base,
        100.0 * counts.trained as f64 / counts.base as f64
    );
    if steps < FEW_STEPS {
        say!(
            "warning: only {}: use more data, raise `--epochs` or `--steps`, or lower `--batch`",
            count(steps, "step")
        );
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn step_has_no_row_twice() {
        for (line, rows, batch, accumulate) in [
            ("", 20, 8, 1),
            ("", 3, 3, 1),
            ("--batch 4 --accumulate 4", 3, 3, 3),
        ] {
            let line = format!("finetune --model m --data d --output o {line}");
            let options = Options::parse_from(line.split_whitespace());
            let options = options.for_rows(rows).unwrap();
            assert_eq!((options.batch, options.accumulate), (batch, accumulate));
            assert_eq!(options.steps(rows).unwrap(), rows.div_ceil(batch));
        }
    }
}
