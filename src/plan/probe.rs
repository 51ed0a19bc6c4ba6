//! Runs dry runs of a model, and ends those that would go beyond the budget.

use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;

use crate::caught::catch;
use crate::fused::{Door, FusedOptimizer};
use crate::loss::Loss;
use crate::memory::{self, Limit, MemoryRecorder, MemoryTimeline, Phase, Sample};
use crate::tap::collect_graph;

use super::error::PlanError;
use super::forecast::Forecast;
use super::pass_profile::count;

/// Seconds above which a pass is not run again only to measure it better.
pub(super) const SLOW: f64 = 2.0;

/// Passes that show how much equal passes differ, and the seconds up to which a pass is run that often.
const REPEATS: usize = 6;
const QUICK: f64 = 0.5;

/// Bytes above which the threads of the backend make equal passes differ.
const LARGE: usize = 1 << 21;

/// The part by which a pass may exceed what is expected of it.
const MARGIN: f64 = 0.1;

/// The bytes and the time of one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassBytes {
    /// Bytes in use when it began.
    pub(super) start: usize,
    /// The most bytes in use, with those before.
    pub(super) peak: usize,
    /// The most in the backward pass over those when that began.
    pub(super) rise: usize,
    /// The most from one moment at which the pass could be ended to the next.
    pub(super) stretch: usize,
    pub(super) seconds: f64,
}

/// A pass that ended well.
pub(super) struct RecordedPass {
    pub(super) run: PassBytes,
    pub(super) timeline: MemoryTimeline,
}

fn bytes(sample: &Sample) -> usize {
    sample.bytes.total()
}

impl PassBytes {
    fn of(timeline: &MemoryTimeline, stretch: usize, seconds: f64) -> Self {
        let start = timeline.samples.first().map_or(0, bytes);
        let end = timeline.samples.last().map_or(0, bytes);
        let samples = timeline.samples.iter();
        let mut backward = samples
            .skip_while(|sample| !matches!(timeline.phase(sample), Phase::Backward))
            .map(bytes);
        let begin = backward.next().unwrap_or(0);
        Self {
            start,
            // The backend keeps what was left: it is in use from the start in the next pass.
            peak: timeline.peak().bytes.total() + end.saturating_sub(start),
            rise: backward.max().unwrap_or(0).saturating_sub(begin),
            stretch,
            seconds,
        }
    }

    /// The most bytes of the pass itself.
    pub(super) fn in_pass(&self) -> usize {
        self.peak.saturating_sub(self.start)
    }
}

impl RecordedPass {
    /// Returns `true` if the pass has left or freed so much that a second one is more precise.
    fn warms_up(&self) -> bool {
        let end = self.timeline.samples.last().map_or(self.run.start, bytes);
        self.run.start.abs_diff(end) > self.run.in_pass() / 100
    }
}

/// A model whose passes are measured.
pub(super) struct Probe<'a, M: Module, F> {
    pub(super) fused: &'a mut FusedOptimizer<M>,
    pub(super) loss: &'a F,
    pub(super) device: &'a Device,
    pub(super) budget: usize,
    /// Bytes of the budget that a pass may take, with all that was in use before.
    pub(super) room: usize,
    /// A pass is counted as this multiple of what is seen of it.
    pub(super) margin: f64,
    /// The part by which one pass was larger than an equal one.
    pub(super) spread: f64,
    /// The fewest bytes in use where a pass was ended.
    pub(super) stopped_at: Option<usize>,
    /// `true` if the last pass that was ended had taken too much, `false` if it was only expected to.
    pub(super) exceeded_limit: bool,
    pub(super) progress: fn(&str),
}

impl<M: Module, L: Loss, F: Fn(&M, usize) -> L> Probe<'_, M, F> {
    /// Returns the most bytes of several passes that are exactly as in training, if they are quick; `None` if one does not fit.
    pub(super) fn prove(
        &mut self,
        items: usize,
        keep: &[bool],
        expected: Forecast,
    ) -> Result<Option<usize>, PlanError> {
        let (mut least, mut most) = (usize::MAX, 0);
        for _ in 0..REPEATS {
            let Some(RecordedPass { run, .. }) = self.pass(items, keep, expected)? else {
                return Ok(None);
            };
            least = least.min(run.in_pass());
            most = most.max(run.in_pass());
            if most < LARGE || run.seconds > QUICK {
                break;
            }
        }
        self.spread = self.spread.max(most as f64 / least.max(1) as f64 - 1.0);
        Ok(Some(
            most.max((least as f64 * (1.0 + self.spread)) as usize),
        ))
    }

    /// Runs a pass whose blocks keep their activations as `keep` says, a second time if the first one warms up. Returns `None` if it does not
    /// fit: it ends before it goes beyond the budget, as far as that can be `expected`.
    pub(super) fn pass(
        &mut self,
        items: usize,
        keep: &[bool],
        expected: Forecast,
    ) -> Result<Option<RecordedPass>, PlanError> {
        let blocks = match count(keep) {
            0 => "all blocks recomputed".to_string(),
            kept if kept == keep.len() => "no block recomputed".to_string(),
            kept => format!("{} of {} blocks recomputed", keep.len() - kept, keep.len()),
        };
        (self.progress)(&format!("{items} items, {blocks}"));
        self.fused.core_mut().keep_activations(keep.to_vec());
        let recorded = self.recorded(items, expected)?;
        match recorded {
            Some(cold) if cold.warms_up() && cold.run.seconds < SLOW => {
                self.recorded(items, expected)
            }
            recorded => Ok(recorded),
        }
    }

    fn recorded(
        &mut self,
        items: usize,
        expected: Forecast,
    ) -> Result<Option<RecordedPass>, PlanError> {
        let start = memory::live(self.device)?;
        let room = self.room.saturating_sub(start) as f64 / self.margin;
        let with_margin = |bytes: usize| (bytes as f64 * (1.0 + MARGIN + self.spread)) as usize;
        let is_sure = expected.most > 0 && start + with_margin(expected.most) <= self.budget;
        let guard = |bytes: usize| if is_sure { 0 } else { with_margin(bytes) };
        let limit = Limit {
            worth: start + room as usize,
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
            // Autodiff holds what the pass had kept until then.
            collect_graph(self.device);
            let bytes = timeline.peak().bytes.total();
            self.exceeded_limit = bytes > limit.worth;
            self.stopped_at = Some(self.stopped_at.map_or(bytes, |fewest| fewest.min(bytes)));
            return Ok(None);
        };
        ended.unwrap_or_else(|panic| panic.resume())?;
        let run = PassBytes::of(&timeline, stretch, seconds);
        Ok(Some(RecordedPass { run, timeline }))
    }
}
