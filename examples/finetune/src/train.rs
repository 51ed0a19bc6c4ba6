//! The training loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use backburn::{FusedError, FusedOptimizer};
use burn::prelude::*;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use peak_alloc::PeakAlloc;

use crate::decoder::Decoder;
use crate::evaluation::Evaluation;
use crate::log::{Line, Log};
use crate::names;
use crate::print::{self, count, say};
use crate::rows::{Order, Rows};
use crate::save_every::SaveEvery;
use crate::saved::{Checkpoints, Saved};
use crate::schedule::Schedule;
use crate::step::step;

/// Interval between the lines of a training without a terminal.
const PRINT_EVERY: Duration = Duration::from_secs(10);

/// Steps until the first of these lines.
const FIRST: usize = 3;

/// The end of a training, with the number of steps made.
pub enum End {
    Complete(usize),
    /// Stopped before its last step.
    Stopped(usize),
}

/// A training in progress.
pub struct Training<'a> {
    pub fused: FusedOptimizer<Decoder>,
    pub rows: &'a Rows,
    pub evaluation: Evaluation<'a>,
    pub order: Order,
    pub schedule: Schedule,
    /// Rows in a step.
    pub batch: usize,
    /// Rows in a micro-batch.
    pub micro_batch: usize,
    pub save_every: SaveEvery,
    /// The checkpoint with the lowest held-out loss, if it is kept.
    pub best: Option<Checkpoints>,
    /// Checkpoints without a lower held-out loss that end the training.
    pub patience: Option<usize>,
    pub log: Log,
    pub device: Device,
}

impl Training<'_> {
    /// Trains from step `done` to step `end`, or until `stop` is set or nothing can be printed or logged. There is a checkpoint of the
    /// last step.
    pub fn run(
        &mut self,
        done: usize,
        end: usize,
        (checkpoints, saved): (&Checkpoints, &mut Saved),
        stop: &AtomicBool,
        bytes: &PeakAlloc,
    ) -> Result<End> {
        if self.is_over(saved) {
            return Ok(End::Complete(done));
        }
        let template = "{bar:20} {pos}/{len} {msg}";
        let progress = ProgressBar::new(self.schedule.steps as u64)
            .with_style(ProgressStyle::with_template(template)?)
            .with_position(done as u64);
        let begun = Instant::now();
        let (mut printed, mut saved_at) = (begun, begun);
        let mut tokens = 0;
        for index in done..end {
            let made = index + 1;
            let line = self.step(index)?;
            self.log.write(&line);
            tokens += line.tokens;
            let seconds = begun.elapsed().as_secs_f64();
            let left = seconds / (made - done) as f64 * (end - made) as f64;
            let message = format!(
                "loss {:.4}, rate {:.2e}, {:.0} tokens/s, peak {:.0} MB, {} left",
                line.loss,
                line.rate,
                tokens as f64 / seconds,
                bytes.peak_usage() as f64 / 1e6,
                HumanDuration(Duration::try_from_secs_f64(left).unwrap_or_default())
            );
            // The bar is for a terminal.
            let is_last = made == end;
            let is_first = made - done == FIRST;
            if progress.is_hidden() && (printed.elapsed() > PRINT_EVERY || is_last || is_first) {
                say!("step {made} of {}: {message}", self.schedule.steps);
                printed = Instant::now();
            }
            progress.set_message(message);
            progress.inc(1);
            let is_stopped =
                stop.load(Ordering::Relaxed) || print::has_failed() || self.log.has_failed();
            let is_due = self.save_every.is_due(made, saved_at.elapsed());
            if is_stopped || is_last || is_due {
                let by_time = matches!(self.save_every, SaveEvery::Time(_));
                let is_evaluated = match self.follows_loss() {
                    // With an interval in steps the same ones, however often the training is stopped.
                    true => is_due || made == self.schedule.steps || (is_last && by_time),
                    false => is_due && !is_last && !is_stopped,
                };
                let model = is_evaluated.then(|| self.fused.valid());
                let loss = model.and_then(|model| self.evaluation.loss(&model));
                let is_best =
                    self.follows_loss() && loss.is_some_and(|loss| saved.record(made, loss));
                checkpoints.save(&self.fused, saved, made)?;
                saved_at = Instant::now();
                if let Some(best) = self.best.as_ref().filter(|_| is_best) {
                    best.save(&self.fused, saved, made)?;
                }
                if let Some(loss) = loss {
                    progress.suspend(|| say!("step {made}: saved, held-out loss {loss:.4}"));
                }
            }
            if is_stopped {
                progress.abandon();
                return Ok(End::Stopped(made));
            }
            if self.is_over(saved) {
                progress.abandon();
                return Ok(End::Complete(made));
            }
        }
        progress.finish();
        Ok(match end < self.schedule.steps {
            true => End::Stopped(end),
            false => End::Complete(end),
        })
    }

    /// Returns `true` if the held-out loss has not become lower for too long.
    fn is_over(&self, saved: &Saved) -> bool {
        let is_over = saved.is_over(self.patience);
        if is_over {
            let later = saved.best.map_or(0, |best| best.later);
            say!(
                "no lower held-out loss in {}: `--patience` ends the training",
                count(later, "checkpoint")
            );
        }
        is_over
    }

    fn follows_loss(&self) -> bool {
        self.best.is_some() || self.patience.is_some()
    }

    /// Trains the step at `index`, which counts from 0.
    fn step(&mut self, index: usize) -> Result<Line> {
        let begun = Instant::now();
        let rate = self.schedule.rate(index);
        let rows = self.order.of_step(index, self.batch);
        let parts = rows.chunks(self.micro_batch);
        let parts = parts.map(|rows| self.rows.batch(rows, &self.device));
        let made = index + 1;
        let loss = step(&mut self.fused, rate, parts.collect());
        let loss = loss.map_err(|error| anyhow!("step {made} failed: {}", advice(error)))?;
        ensure!(
            loss.is_finite(),
            "the loss of step {made} is {loss}: lower `--learning-rate`, and begin in another folder"
        );
        Ok(Line {
            step: made,
            loss,
            rate,
            norm: self.fused.last_step().gradient_norm,
            tokens: self.batch * self.rows.length(),
            seconds: begun.elapsed().as_secs_f64(),
        })
    }
}

/// Returns the message of an error, with the advice for this program.
fn advice(error: FusedError) -> String {
    match error {
        FusedError::NormNotFinite { path, .. }
        | FusedError::UpdatedNotFinite { path, .. }
        | FusedError::GradientNotFinite { path } => format!(
            "the gradient of `{}` is not finite. Lower `--learning-rate`, and begin in another folder",
            names::in_files(&path)
        ),
        error => names::in_files(&error),
    }
}
