//! The training loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backburn::FusedOptimizer;
use burn::prelude::*;
use indicatif::{ProgressBar, ProgressStyle};
use peak_alloc::PeakAlloc;

use crate::decoder::Decoder;
use crate::rows::{Order, Rows};
use crate::saved::{Checkpoints, Saved};
use crate::schedule::Schedule;
use crate::step::{mean_loss, step};

/// Interval between the lines of a training without a terminal.
const PRINT_EVERY: Duration = Duration::from_secs(10);

/// The most rows to measure the loss on.
const HELD_OUT: usize = 64;

/// A training in progress.
pub struct Training<'a> {
    pub fused: FusedOptimizer<Decoder>,
    pub rows: &'a Rows,
    pub held_out: &'a Rows,
    pub order: Order,
    pub schedule: Schedule,
    /// Rows in a step.
    pub batch: usize,
    /// Rows in a micro-batch.
    pub micro_batch: usize,
    pub save_every: usize,
    pub device: Device,
}

impl Training<'_> {
    /// Trains from step `done` to step `end`, or until `stop` is set, and saves checkpoints; returns the number of steps made.
    pub fn run(
        &mut self,
        done: usize,
        end: usize,
        (checkpoints, saved): (&Checkpoints, &Saved),
        stop: &AtomicBool,
        bytes: &PeakAlloc,
    ) -> Result<usize> {
        let template = "{bar:20} {pos}/{len} {msg}, {eta} left";
        let progress = ProgressBar::new(self.schedule.steps as u64)
            .with_style(ProgressStyle::with_template(template)?)
            .with_position(done as u64);
        let begun = Instant::now();
        let mut printed = begun;
        let mut tokens = 0;
        for index in done..end {
            let rate = self.schedule.rate(index);
            let rows = self.order.of_step(index, self.batch);
            let parts = rows.chunks(self.micro_batch);
            let parts = parts.map(|rows| self.rows.batch(rows, &self.device));
            let loss = step(&mut self.fused, rate, parts.collect())
                .with_context(|| format!("step {} failed", index + 1))?;
            ensure!(
                loss.is_finite(),
                "the loss of step {} is {loss}: lower `--learning-rate`, and go on with the last checkpoint, or from the beginning",
                index + 1
            );
            tokens += self.batch * self.rows.length();
            let message = format!(
                "loss {loss:.4}, rate {rate:.2e}, {:.0} tokens/s, peak {:.0} MB",
                tokens as f64 / begun.elapsed().as_secs_f64(),
                bytes.peak_usage() as f64 / 1e6
            );
            // The bar is for a terminal.
            let is_last = index + 1 == end;
            if progress.is_hidden() && (printed.elapsed() > PRINT_EVERY || is_last) {
                println!("step {} of {}: {message}", index + 1, self.schedule.steps);
                printed = Instant::now();
            }
            progress.set_message(message);
            progress.inc(1);
            let made = index + 1;
            let is_stopped =
                stop.load(Ordering::Relaxed) || (is_last && made < self.schedule.steps);
            if is_stopped || (made.is_multiple_of(self.save_every) && !is_last) {
                checkpoints.save(&self.fused, saved, made)?;
                if !is_stopped && !self.held_out.is_empty() {
                    let loss = self.held_out_loss();
                    progress.suspend(|| println!("step {made}: saved, held-out loss {loss:.4}"));
                }
            }
            if is_stopped {
                progress.abandon();
                return Ok(made);
            }
        }
        progress.finish();
        Ok(end)
    }

    /// Returns the mean loss on rows that are held out.
    pub fn held_out_loss(&self) -> f64 {
        let every = self.held_out.len().div_ceil(HELD_OUT).max(1);
        let rows: Vec<usize> = (0..self.held_out.len()).step_by(every).collect();
        let device = self.device.clone().inner();
        let batches = rows.chunks(self.micro_batch);
        let model = self.fused.valid();
        mean_loss(
            &model,
            batches.map(|rows| self.held_out.batch(rows, &device)),
        )
    }
}
