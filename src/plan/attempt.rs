//! Runs passes of a model, or steps, and ends those that would go too far.

use burn::module::Module;
use burn::tensor::Device;

use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::FusedOptimizer;
use crate::loss::Loss;
use crate::memory::{self, Limit};

use super::error::PlanError;
use super::expected::Expected;
use super::pass::Run;
use super::recorded::{Ended, Recorded, recorded};

/// Seconds from which on a pass is not run again only to know it better.
pub(super) const SLOW: f64 = 2.0;

/// Seconds up to which a pass is run several times, to see how passes spread: so many tell it.
pub(super) const QUICK: f64 = 0.5;
const TELLING: usize = 10;

/// Bytes from which on the threads of the backend make passes that are alike differ.
const LARGE: usize = 1 << 21;

/// A model whose passes are measured.
pub(super) struct Climber<'a, M: Module, F> {
    pub(super) fused: &'a mut FusedOptimizer<M>,
    pub(super) loss: &'a F,
    pub(super) device: &'a Device,
    /// Bytes that there are.
    pub(super) budget: usize,
    /// And those of them that a pass may take, with all that was there before.
    pub(super) room: usize,
    /// Bytes of the largest gradient.
    pub(super) largest: usize,
    /// By which part one pass was larger than another over as many items: what threads compute at once is not always the same.
    pub(super) spread: f64,
    /// In how many multiples of what is seen a pass is counted.
    pub(super) unseen: f64,
    /// Bytes in use where passes have ended early, the fewest.
    pub(super) ended_at: Option<usize>,
    /// Is told of each pass.
    pub(super) progress: fn(&str),
}

impl<M, L, F> Climber<'_, M, F>
where
    M: Module,
    L: Loss,
    F: Fn(&M, usize) -> L,
{
    /// The most bytes in steps whose optimizer holds nothing; none if they don't come to their end: a norm may be no number.
    pub(super) fn rehearse(
        &mut self,
        items: usize,
        keep: Vec<bool>,
        accumulation: usize,
    ) -> Result<Option<usize>, PlanError> {
        (self.progress)(&format!("steps of {accumulation} times {items} items"));
        self.keep(keep)?;
        let mut came = Ok(());
        let recorded = recorded(self.device, None, || {
            came = steps(self.fused, accumulation, |model| (self.loss)(model, items));
            Ok(())
        })?;
        let Some(recorded) = recorded.well() else {
            return Ok(None);
        };
        // What the first step has left is there in the second.
        let (start, peak) = (recorded.run.start, recorded.timeline.peak().bytes.total());
        let peak = peak + ((peak - start) as f64 * self.spread) as usize;
        Ok(came.is_ok().then_some(peak))
    }

    /// A pass over the batch as stock Burn does it.
    pub(super) fn stock(&mut self, items: usize) -> Result<Option<Run>, PlanError> {
        (self.progress)(&format!("{items} items as stock Burn has it"));
        let model = self.fused.model();
        let recorded = recorded(self.device, None, || {
            let loss = (self.loss)(&model, items);
            if !loss.has_graph() {
                return Err(FusedError::LossNotTracked);
            }
            drop(loss.go_back(None, None));
            Ok(())
        })?;
        Ok(recorded.well().map(|recorded| recorded.run))
    }

    /// A pass whose blocks keep their activations as `keep` says: of several, the largest, if that takes no long time; and no less than
    /// by what others have taught. None if it does not fit. Where it is feared to go beyond the budget it ends before: a pass may take `stretch`
    /// bytes until it can be ended.
    pub(super) fn passes(
        &mut self,
        items: usize,
        keep: Vec<bool>,
        expected: Option<Expected>,
        stretch: usize,
    ) -> Result<Option<Recorded>, PlanError> {
        // What passes that are alike differ by, and may by chance.
        let margin = 0.1 + self.spread;
        let is_feared = expected.is_none_or(|it| it.with_margin(margin).feared > self.budget);
        let stretch = match is_feared {
            true => (stretch as f64 * (1.0 + margin)) as usize,
            false => 0,
        };
        let Some(mut largest) = self.pass(items, keep.clone(), stretch)? else {
            return Ok(None);
        };
        let mut least = largest.run.in_pass();
        if least >= LARGE && largest.run.seconds <= QUICK {
            for _ in 1..TELLING {
                let Some(recorded) = self.pass(items, keep.clone(), stretch)? else {
                    return Ok(None);
                };
                least = least.min(recorded.run.in_pass());
                if recorded.run.in_pass() > largest.run.in_pass() {
                    largest = recorded;
                }
            }
            let spread = largest.run.in_pass() as f64 / least as f64 - 1.0;
            self.spread = self.spread.max(spread);
        }
        let feared = largest.run.start + (least as f64 * (1.0 + self.spread)) as usize;
        largest.run.peak = largest.run.peak.max(feared);
        Ok(Some(largest))
    }

    /// A pass whose blocks keep their activations as `keep` says; warmed, if that takes no long time.
    fn pass(
        &mut self,
        items: usize,
        keep: Vec<bool>,
        stretch: usize,
    ) -> Result<Option<Recorded>, PlanError> {
        let kept = keep.iter().filter(|keep| **keep).count();
        let blocks = match kept {
            0 => "all blocks run twice".to_string(),
            _ if kept == keep.len() => "no block runs twice".to_string(),
            _ => format!("{kept} of {} blocks run once", keep.len()),
        };
        (self.progress)(&format!("{items} items, {blocks}"));
        self.keep(keep)?;
        // A device that shows less than it takes is given less.
        let start = memory::live(self.device)?;
        let room = self.room.saturating_sub(start) as f64 / self.unseen;
        let limit = Limit {
            worth: start + room as usize,
            budget: self.budget,
            stretch,
        };
        let mut once = || {
            recorded(self.device, Some(limit), || {
                self.fused
                    .try_dry_run(|model| (self.loss)(model, items))
                    .map(drop)
            })
        };
        let first = once()?;
        let ended = match &first {
            Ended::Well(Recorded { run, timeline })
                if run.warms_up(timeline) && run.seconds < SLOW =>
            {
                once()?
            }
            _ => first,
        };
        if let Ended::Early(bytes) = ended {
            let before = self.ended_at.unwrap_or(usize::MAX);
            self.ended_at = Some(before.min(bytes));
        }
        Ok(ended.well())
    }

    /// Has these blocks keep their activations.
    fn keep(&mut self, keep: Vec<bool>) -> Result<(), FusedError> {
        let config: FusedConfig = self.fused.config().clone();
        let blocks = config.gradient_checkpointing.clone();
        let blocks = blocks.with_keep_activations(keep);
        self.fused
            .try_set_config(config.with_gradient_checkpointing(blocks))
    }
}

/// Two steps of `fused` that change nothing.
fn steps<M: Module, L: Loss>(
    fused: &mut FusedOptimizer<M>,
    accumulation: usize,
    loss: impl Fn(&M) -> L,
) -> Result<(), FusedError> {
    for _ in 0..2 {
        for _ in 1..accumulation {
            fused.try_accumulate(&loss)?;
        }
        fused.try_step_repeatable(0.0, &loss)?;
    }
    Ok(())
}
