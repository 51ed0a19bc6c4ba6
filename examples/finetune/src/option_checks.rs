//! Options that are out of range, or that the selected method does not use.

use anyhow::{Result, ensure};

use crate::config::DecoderConfig;
use crate::first_adapters;
use crate::options::{FileType, Options};
use crate::print::count;
use crate::save_every::SaveEvery;

/// The most tokens in a row, in a row of several documents, and in a step. The masks and indices of more can't be allocated.
const MAX_LENGTH: usize = 1 << 20;
const MAX_PACKED: usize = 1 << 16;
const MAX_TOKENS: usize = 1 << 28;

/// The most passes over the rows.
const MAX_EPOCHS: usize = 1_000_000;

impl Options {
    /// Returns an error for a value that is out of range, and for an option that the selected method does not use.
    pub fn check(&self, config: &DecoderConfig) -> Result<()> {
        self.check_method(config)?;
        for (option, number) in [
            ("batch", self.batch),
            ("accumulate", self.accumulate),
            ("epochs", self.epochs),
            ("steps", self.steps.unwrap_or(1)),
            ("stop", self.stop.unwrap_or(1)),
            ("keep-last", self.keep_last),
            ("patience", self.patience.unwrap_or(1)),
            ("length", self.length(config)),
        ] {
            ensure!(number > 0, "`--{option}` is 0: use 1 or more");
        }
        ensure!(
            self.accumulate <= self.batch,
            "`--accumulate` is {}, and a step has {}: each micro-batch takes one",
            self.accumulate,
            count(self.batch, "row")
        );
        let length = self.length(config);
        let most = config.max_length.min(MAX_LENGTH);
        ensure!(
            length <= most,
            "`--length` is {length}, and the model was made for {}{}",
            config.max_length,
            match most < config.max_length {
                true => format!(": this program trains on rows of at most {most} tokens"),
                false => " tokens".to_owned(),
            }
        );
        ensure!(
            self.pad || length <= MAX_PACKED,
            "`--length` is {length}, and packed rows have a mask of that many bytes squared: use at most {MAX_PACKED}, or `--pad`"
        );
        ensure!(
            self.batch <= MAX_TOKENS / length,
            "`--batch` is {}: with rows of {length} tokens use at most {}",
            self.batch,
            MAX_TOKENS / length
        );
        ensure!(
            self.epochs <= MAX_EPOCHS,
            "`--epochs` is {}: use at most {MAX_EPOCHS}",
            self.epochs
        );
        for (option, number) in [
            ("learning-rate", self.learning_rate()),
            ("alpha", self.adapters().alpha),
        ] {
            ensure!(
                number > 0.0 && number.is_finite(),
                "`--{option}` is {number}: it must be a positive number"
            );
        }
        for (option, number) in [
            ("clip", self.clip),
            ("weight-decay", f64::from(self.weight_decay)),
        ] {
            ensure!(
                number >= 0.0 && number.is_finite(),
                "`--{option}` is {number}: it must be 0 or a positive number"
            );
        }
        for (option, share) in [("warm-up", self.warm_up), ("held-out", self.held_out)] {
            ensure!(
                (0.0..1.0).contains(&share),
                "`--{option}` is {share}: it is a share from 0 to below 1"
            );
        }
        Ok(())
    }

    /// Returns an error if the training, of this many steps, ends before `--patience` can end it.
    pub fn check_patience(&self, steps: usize) -> Result<()> {
        if let (Some(patience), SaveEvery::Steps(every)) = (self.patience, self.save_every) {
            let saved = steps.div_ceil(every);
            ensure!(
                patience < saved,
                "`--patience` is {patience}, and the training saves only {}: lower `--save-every`",
                count(saved, "checkpoint")
            );
        }
        Ok(())
    }

    /// Checks the options of adapters and of the written file.
    fn check_method(&self, config: &DecoderConfig) -> Result<()> {
        let has_adapters = self.method.has_adapters();
        for (option, is_set) in [
            ("rank", self.rank.is_some()),
            ("alpha", self.alpha.is_some()),
            ("targets", !self.targets.is_empty()),
            ("adapters", self.adapters.is_some()),
            ("merge", self.merge),
        ] {
            ensure!(
                has_adapters || !is_set,
                "`--{option}` is for adapters: choose them with `--method`"
            );
        }
        ensure!(
            !self.writes_adapters() || self.dtype == FileType::Base,
            "`--dtype` is for a whole model, and adapters are written as they are trained: add `--merge`, or leave `--dtype` out"
        );
        let adapters = self.adapters();
        adapters.check()?;
        ensure!(
            !has_adapters || adapters.rank <= config.hidden,
            "`--rank` is {}, and the model has {} hidden elements: use at most that many",
            adapters.rank,
            config.hidden
        );
        match &self.adapters {
            Some(folder) => first_adapters::check(folder, &adapters, config.layers()),
            None => Ok(()),
        }
    }
}
