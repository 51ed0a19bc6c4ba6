//! Measurement of dry runs, which are stopped before they exceed the budget.

use std::time::Instant;

use backburn_base::caught::catch;
use backburn_memory as memory;
use backburn_memory::{Limit, MemoryError, MemoryRecorder};
use burn::module::Module;
use burn::tensor::Device;

use crate::fused::{FusedOptimizer, Loss, Trainer};
use crate::tap::collect_graph;

use super::error::PlanError;
use super::forecast::Forecast;
use super::pass_bytes::{PassBytes, RecordedPass, SLOW, count_kept};

/// Repetitions of a pass to measure the variance, and the maximum seconds of a repeated pass.
const REPEATS: usize = 6;
const QUICK: f64 = 0.5;

/// Bytes above which equal passes differ, because of the threads of the backend.
const LARGE: usize = 1 << 21;

/// Fraction by which a pass may exceed its forecast.
const FORECAST_ERROR: f64 = 0.1;

/// Returns the bytes in use, after a collection of autodiff nodes of dropped models.
pub(super) fn held(device: &Device) -> Result<usize, MemoryError> {
    collect_graph(device);
    memory::live(device)
}

/// A model whose passes are measured.
pub(super) struct Probe<'a, M: Module, F> {
    pub(super) fused: &'a mut FusedOptimizer<M>,
    pub(super) loss: &'a F,
    pub(super) device: &'a Device,
    pub(super) budget: usize,
    /// Bytes of the budget that a pass may use, including those at its start.
    pub(super) available: usize,
    /// Factor on the measured bytes of a pass.
    pub(super) margin: f64,
    /// Maximum relative difference of equal passes.
    pub(super) spread: f64,
    pub(super) progress: fn(&str),
}

/// A pass that was stopped.
#[derive(Clone, Copy)]
pub(super) struct Stopped {
    /// Bytes in use when it was stopped.
    pub(super) bytes: usize,
    /// `true` if they had exceeded the limit, `false` if they were only expected to.
    pub(super) exceeded_limit: bool,
}

impl<M: Module, L: Loss, F: Fn(&M, usize) -> L> Probe<'_, M, F> {
    /// Measures passes exactly as in training, several times if they are quick. Returns their peak bytes, unless one
    /// does not fit.
    pub(super) fn prove(
        &mut self,
        items: usize,
        keep: &[bool],
        expected: Forecast,
    ) -> Result<Result<usize, Stopped>, PlanError> {
        let (mut least, mut most) = (usize::MAX, 0);
        for _ in 0..REPEATS {
            let run = match self.pass(items, keep, expected)? {
                Ok(RecordedPass { run, .. }) => run,
                Err(stopped) => return Ok(Err(stopped)),
            };
            least = least.min(run.in_pass());
            most = most.max(run.in_pass());
            if most < LARGE || run.seconds > QUICK {
                break;
            }
        }
        self.spread = self.spread.max(most as f64 / least.max(1) as f64 - 1.0);
        Ok(Ok(most.max((least as f64 * (1.0 + self.spread)) as usize)))
    }

    /// Runs a pass whose blocks in `keep` keep their activations, twice if the first pass warms up. If it does not fit,
    /// it is stopped before it exceeds the budget, as far as the forecast allows.
    pub(super) fn pass(
        &mut self,
        items: usize,
        keep: &[bool],
        expected: Forecast,
    ) -> Result<Result<RecordedPass, Stopped>, PlanError> {
        let blocks = match count_kept(keep) {
            0 => "all blocks recomputed".to_string(),
            kept if kept == keep.len() => "no block recomputed".to_string(),
            kept => format!("{} of {} blocks recomputed", keep.len() - kept, keep.len()),
        };
        (self.progress)(&format!("{items} items, {blocks}"));
        self.fused.core_mut().keep_activations(keep.to_vec());
        let recorded = self.recorded(items, expected)?;
        match recorded {
            Ok(cold) if cold.warms_up() && cold.run.seconds < SLOW => {
                self.recorded(items, expected)
            }
            recorded => Ok(recorded),
        }
    }

    fn recorded(
        &mut self,
        items: usize,
        expected: Forecast,
    ) -> Result<Result<RecordedPass, Stopped>, PlanError> {
        let start = memory::live(self.device)?;
        let available = self.available.saturating_sub(start) as f64 / self.margin;
        let with_margin =
            |bytes: usize| (bytes as f64 * (1.0 + FORECAST_ERROR + self.spread)) as usize;
        let is_sure = expected.most > 0 && start + with_margin(expected.most) <= self.budget;
        let guard = |bytes: usize| if is_sure { 0 } else { with_margin(bytes) };
        let limit = Limit {
            worth: start + available as usize,
            budget: self.budget,
            stretch: guard(expected.stretch),
            backward: guard(expected.rise),
        };
        let recorder = MemoryRecorder::start_peaks(self.device, Some(limit))?;
        let begun = Instant::now();
        let ended = catch(|| {
            recorder.forward(|| {
                let pass = |model: &M| (self.loss)(model, items);
                self.fused.dry_run(pass).map(drop)
            })
        });
        let seconds = begun.elapsed().as_secs_f64();
        let (timeline, stretch) = recorder.finish_peaks()?;
        let Some(stretch) = stretch else {
            // Free the tensors that the stopped pass saved for its backward pass.
            collect_graph(self.device);
            let bytes = timeline.peak().bytes.total();
            let exceeded_limit = bytes > limit.worth;
            return Ok(Err(Stopped {
                bytes,
                exceeded_limit,
            }));
        };
        ended.unwrap_or_else(|panic| panic.resume())?;
        let run = PassBytes::of(&timeline, stretch, seconds);
        Ok(Ok(RecordedPass { run, timeline }))
    }
}
