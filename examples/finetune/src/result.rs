//! Files of a finished training.

use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::DType;

use crate::card;
use crate::config::DecoderConfig;
use crate::evaluation::Evaluation;
use crate::losses::Losses;
use crate::model_files;
use crate::options::Options;
use crate::output::{Finished, Output};
use crate::planning;
use crate::print::say;
use crate::saved::Saved;
use crate::train::Training;
use crate::trained::Trained;

/// The result of a training after `made` steps.
pub struct TrainingResult<'a> {
    pub options: &'a Options,
    pub config: &'a DecoderConfig,
    pub saved: Saved,
    pub made: usize,
    /// Float type of the files.
    pub dtype: DType,
    pub evaluation: Evaluation<'a>,
}

impl TrainingResult<'_> {
    /// Writes the weights of `training`, or its best ones, to `output` as the result `finished`, and returns them.
    pub fn write(
        self,
        training: Training<'_>,
        output: &mut Output,
        finished: Finished,
    ) -> Result<Trained> {
        let options = self.options;
        let Training {
            mut fused,
            best: kept,
            ..
        } = training;
        // The step whose weights are written.
        let mut step = self.made;
        match (self.saved.best, &kept) {
            (Some(best), Some(checkpoint)) if best.step != self.made => {
                // Before the load, which would hold both.
                drop(fused);
                let plan = self.saved.plan.as_ref();
                let device = &self.evaluation.device;
                fused = planning::fuse_outline(options, self.config, plan, device)?;
                step = checkpoint.at_step(best.step).load(&mut fused)?;
                say!("the weights of step {step} are written: their held-out loss is the lowest");
            }
            (None, Some(_)) => {
                say!("no checkpoint with a held-out loss was kept, so the last weights are written")
            }
            _ => {}
        }
        let plan = self.saved.plan.as_ref();
        let result = Trained::of(options, plan, fused, self.dtype, &self.evaluation)?;
        let losses = Losses {
            before: self.saved.loss_before,
            trained: result.trained_loss,
            after: result.loss,
        };
        losses.report(self.dtype, options);
        let write = |folder: &Path| {
            result.write(options, folder, self.dtype)?;
            card::write(options, step, losses, folder)
        };
        let written = output.replace(&model_files::files(options), finished, write);
        written.context(
            "the model is trained, but only its checkpoint is written: the same command resumes it",
        )?;
        say!("written to {}", options.output.display());
        Ok(result)
    }
}
