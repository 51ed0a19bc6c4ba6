//! Runs passes of a model, or steps, and ends those that would go too far.

use burn::module::Module;
use burn::tensor::Device;

use crate::error::FusedError;
use crate::fused::{Door, FusedOptimizer};
use crate::loss::Loss;
use crate::memory::{self, Limit};

use super::error::PlanError;
use super::expected::Expected;
use super::pass::count;
use super::run::{EndedEarly, Recorded, Run, recorded};

/// Seconds from which on a pass is not run again only to know it better.
pub(super) const SLOW: f64 = 2.0;

/// Seconds up to which a pass is run several times, to see how passes spread: so many tell it.
pub(super) const QUICK: f64 = 0.5;
const TELLING: usize = 10;

/// Bytes from which on the threads of the backend make passes that are alike differ.
const LARGE: usize = 1 << 21;

/// Micro-batches that show what all hold.
const BUFFERS: usize = 3;

/// A model whose passes are measured.
pub(super) struct Probe<'a, M: Module, F> {
    pub(super) fused: &'a mut FusedOptimizer<M>,
    pub(super) loss: &'a F,
    pub(super) device: &'a Device,
    /// Bytes that there are.
    pub(super) budget: usize,
    /// And those of them that a pass may take, with all that was there before.
    pub(super) room: usize,
    /// Bytes of the largest gradient.
    pub(super) largest: usize,
    /// In how many multiples of what is seen a pass is counted.
    pub(super) unseen: f64,
    /// By which part one pass was larger than another over as many items: what threads compute at once is not always the same.
    pub(super) spread: f64,
    /// Bytes in use where passes have ended early, the fewest.
    pub(super) ended_at: Option<usize>,
    /// Is told of each pass.
    pub(super) progress: fn(&str),
}

impl<M: Module, L: Loss, F: Fn(&M, usize) -> L> Probe<'_, M, F> {
    /// A pass whose blocks keep their activations as `keep` says: of several, the largest, if that takes no long time, and no less than
    /// others have taught. None if it does not fit; it ends before it goes beyond the budget where that is feared of what is `expected`.
    pub(super) fn pass(
        &mut self,
        items: usize,
        keep: &[bool],
        expected: Option<Expected>,
    ) -> Result<Option<Recorded>, PlanError> {
        // What passes that are alike differ by, and may by chance.
        let margin = 0.1 + self.spread;
        let is_sure = expected.is_some_and(|it| !it.is_feared(self.budget, margin));
        let stretch = expected.map_or(self.largest, |it| it.stretch) as f64 * (1.0 + margin);
        let stretch = if is_sure { 0 } else { stretch as usize };
        let Some(mut largest) = self.one_pass(items, keep, stretch)? else {
            return Ok(None);
        };
        let mut least = largest.run.in_pass();
        if least >= LARGE && largest.run.seconds <= QUICK {
            for _ in 1..TELLING {
                let Some(recorded) = self.one_pass(items, keep, stretch)? else {
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

    /// One of them, which ends where the next `stretch` of bytes might go beyond the budget; warmed, if that takes no long time.
    fn one_pass(
        &mut self,
        items: usize,
        keep: &[bool],
        stretch: usize,
    ) -> Result<Option<Recorded>, PlanError> {
        let blocks = match count(keep) {
            0 => "all blocks run twice".to_string(),
            kept if kept == keep.len() => "no block runs twice".to_string(),
            kept => format!("{kept} of {} blocks run once", keep.len()),
        };
        (self.progress)(&format!("{items} items, {blocks}"));
        self.keep(keep);
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
                let pass = |model: &M| (self.loss)(model, items);
                self.fused.dry_run(pass).map(drop)
            })
        };
        let mut ended = once()?;
        if let Ok(cold) = &ended
            && cold.warms_up()
            && cold.run.seconds < SLOW
        {
            ended = once()?;
        }
        if let Err(EndedEarly(bytes)) = ended {
            self.ended_at = Some(self.ended_at.map_or(bytes, |fewest| fewest.min(bytes)));
        }
        Ok(ended.ok())
    }

    /// The most bytes in two steps that change nothing, and whose optimizer holds nothing; none if they don't come to their end: a norm may
    /// be no number.
    pub(super) fn steps(
        &mut self,
        items: usize,
        keep: &[bool],
        accumulation: usize,
    ) -> Result<Option<usize>, PlanError> {
        let accumulation = accumulation.min(BUFFERS);
        (self.progress)(&format!("steps of {accumulation} times {items} items"));
        self.keep(keep);
        let loss = |model: &M| (self.loss)(model, items);
        let steps = recorded(self.device, None, || {
            for _ in 0..2 {
                for _ in 1..accumulation {
                    self.fused.accumulate(loss)?;
                }
                self.fused.step_repeatable(0.0, loss)?;
            }
            Ok(())
        });
        match steps {
            Ok(Ok(Recorded { run, timeline })) => {
                // What the first step has left is there in the second.
                let peak = timeline.peak().bytes.total();
                let spread = (peak - run.start) as f64 * self.spread;
                Ok(Some(peak + spread as usize))
            }
            Ok(Err(_)) | Err(PlanError::Fused(_)) => Ok(None),
            Err(error) => Err(error),
        }
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
        Ok(recorded.ok().map(|recorded| recorded.run))
    }

    /// Has these blocks keep their activations.
    fn keep(&mut self, keep: &[bool]) {
        self.fused.core_mut().keep_activations(keep.to_vec());
    }
}
