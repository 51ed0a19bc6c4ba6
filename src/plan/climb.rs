//! Measures passes over more and more items, within a budget.

use burn::module::Module;
use burn::tensor::Device;

use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::FusedOptimizer;
use crate::loss::Loss;
use crate::memory;

use super::error::PlanError;
use super::expected::Expected;
use super::pass::{Kept, Pass, Run};
use super::recorded::{Recorded, recorded};
use super::trial::steps;
use super::twice::Twice;

/// More blocks than a step has of which no recording has told the number.
const MANY: usize = 1 << 12;

/// Bytes that the first pass takes at least for threads of the backend, activations and notes.
pub(super) const AT_FIRST: usize = 1 << 19;

/// Seconds from which on a pass is not run again only to know it better.
const SLOW: f64 = 2.0;

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
    /// Is told of each pass.
    pub(super) progress: fn(&str),
}

impl<M, L, F> Climber<'_, M, F>
where
    M: Module,
    L: Loss,
    F: Fn(&M, usize) -> L,
{
    /// Measures passes over more and more items of a batch, as long as there is room for the next one, with blocks that run
    /// twice and with blocks that don't.
    pub(super) fn climb(&mut self, batch: usize) -> Result<Vec<Pass>, PlanError> {
        let mut passes: Vec<Pass> = Vec::new();
        // Nobody knows what the first pass takes beside gradients.
        if memory::live(self.device)? + 2 * self.largest + AT_FIRST > self.room {
            return Ok(passes);
        }
        for items in sizes(batch) {
            let of_twice = self.expected(&passes, items, |pass| pass.all_twice());
            let of_kept = self.expected(&passes, items, |pass| pass.none_twice());
            let no_blocks = passes.first().is_some_and(Pass::has_no_blocks);
            let no_twice = passes.first().is_some_and(|pass| pass.twice.is_none());
            let mut pass = Pass::over(items);
            if !no_twice
                && of_twice.is_none_or(|it| self.has_room(it))
                && let recorded = self.passes(items, Vec::new())?
                && recorded.is_whole
            {
                pass.note_twice(recorded.timeline, recorded.run);
            }
            if let (Some(twice), Some(share)) = (&mut pass.twice, share(&passes)) {
                twice.take_over(share);
            }
            let fits = match (&pass.twice, of_kept) {
                (Some(twice), of_kept) => {
                    let of_blocks = self.with_margin(twice.peak_of_all());
                    self.has_room(of_blocks) && of_kept.is_none_or(|it| self.has_room(it))
                }
                // Blocks that run twice are not always the smaller way.
                (None, None) => passes.is_empty(),
                (None, Some(expected)) => self.has_room(expected),
            };
            let many = if no_blocks { 0 } else { MANY };
            let keep = vec![true; pass.twice.as_ref().map_or(many, Twice::count)];
            if pass.none_twice().is_none()
                && fits
                && let recorded = self.passes(items, keep.clone())?
                && recorded.is_whole
            {
                pass.note(keep, recorded.run);
            }
            if pass.none_twice().is_none() && pass.twice.is_none() {
                break;
            }
            passes.push(pass);
        }
        Ok(passes)
    }

    /// The bytes that a pass over `items` is expected to take, from those over fewer.
    fn expected(
        &self,
        passes: &[Pass],
        items: usize,
        of: impl Fn(&Pass) -> Option<Kept>,
    ) -> Option<Expected> {
        let known = passes.iter();
        let known: Vec<_> = known
            .filter_map(|pass| of(pass).map(|kept| (pass.items, kept.run)))
            .collect();
        Expected::after(&known, items, self.largest).map(|it| self.with_margin(it))
    }

    /// Whether a pass is worth it, and stays within the budget in any case: what a training holds beside a pass is not there yet.
    fn has_room(&self, Expected { hoped, feared, .. }: Expected) -> bool {
        hoped <= self.room && feared <= self.budget
    }

    /// With what passes that are alike differ by, and may by chance.
    fn with_margin(&self, expected: Expected) -> Expected {
        expected.with_margin(0.1 + self.spread)
    }

    /// Runs a pass with these blocks, and learns from it.
    pub(super) fn check(&mut self, pass: &mut Pass, kept: &Kept) -> Result<(), PlanError> {
        let recorded = self.passes(pass.items, kept.keep.clone())?;
        pass.note(kept.keep.clone(), recorded.run);
        Ok(())
    }

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
        let recorded = recorded(self.device, usize::MAX, || {
            came = steps(self.fused, accumulation, |model| (self.loss)(model, items));
            Ok(())
        })?;
        // What the first step has left is there in the second.
        let (start, peak) = (recorded.run.start, recorded.timeline.peak().bytes.total());
        let peak = peak + ((peak - start) as f64 * self.spread) as usize;
        Ok(came.is_ok().then_some(peak))
    }

    /// How many choices of blocks are tried: of a slow pass, one.
    pub(super) fn tries(&self, passes: &[Pass]) -> usize {
        let mut runs = passes.iter().filter_map(|pass| pass.all_twice());
        let is_slow = runs.any(|twice| twice.run.seconds > SLOW);
        if is_slow { 1 } else { 8 }
    }

    /// A pass over the batch as stock Burn does it.
    pub(super) fn stock(&mut self, items: usize) -> Result<Run, PlanError> {
        (self.progress)(&format!("{items} items as stock Burn has it"));
        let model = self.fused.model();
        let recorded = recorded(self.device, usize::MAX, || {
            let loss = (self.loss)(&model, items);
            if !loss.has_graph() {
                return Err(FusedError::LossNotTracked);
            }
            drop(loss.go_back(None, None));
            Ok(())
        })?;
        Ok(recorded.run)
    }

    /// A pass whose blocks keep their activations as `keep` says: of several, the largest, if that takes no long time; and no less than
    /// by what others have taught.
    fn passes(&mut self, items: usize, keep: Vec<bool>) -> Result<Recorded, PlanError> {
        let mut largest = self.pass(items, keep.clone())?;
        let mut least = largest.run.in_pass();
        let Run { seconds, .. } = largest.run;
        if largest.is_whole && least >= LARGE && seconds <= QUICK {
            for _ in 1..TELLING {
                let recorded = self.pass(items, keep.clone())?;
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
        Ok(largest)
    }

    /// A pass whose blocks keep their activations as `keep` says; warmed, if that takes no long time.
    fn pass(&mut self, items: usize, keep: Vec<bool>) -> Result<Recorded, PlanError> {
        let kept = keep.iter().filter(|keep| **keep).count();
        let blocks = match kept {
            0 => "all blocks run twice".to_string(),
            _ if kept == keep.len() => "no block runs twice".to_string(),
            _ => format!("{kept} of {} blocks run once", keep.len()),
        };
        (self.progress)(&format!("{items} items, {blocks}"));
        self.keep(keep)?;
        let mut once = || {
            recorded(self.device, self.room, || {
                self.fused
                    .try_dry_run(|model| (self.loss)(model, items))
                    .map(drop)
            })
        };
        let first = once()?;
        if first.is_whole && first.run.warms_up(&first.timeline) && first.run.seconds < SLOW {
            once()
        } else {
            Ok(first)
        }
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

/// What has been learned of blocks that keep their activations.
fn share(passes: &[Pass]) -> Option<f64> {
    let mut passes = passes.iter().rev();
    let last = passes.find(|pass| pass.none_twice().is_some())?;
    last.twice.as_ref().map(Twice::share)
}

/// Parts of a batch, the smallest first: each at most half of the next, and dividing it.
fn sizes(batch: usize) -> Vec<usize> {
    let mut sizes = vec![batch];
    let mut last = batch;
    while last > 1 {
        let mut divisors = (2..).take_while(|divisor| divisor * divisor <= last);
        let smallest = divisors.find(|divisor| last.is_multiple_of(*divisor));
        last = smallest.map_or(1, |divisor| last / divisor);
        sizes.push(last);
    }
    sizes.reverse();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_batch_divide_it() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(7), [1, 7]);
        assert_eq!(sizes(32), [1, 2, 4, 8, 16, 32]);
        assert_eq!(sizes(60), [1, 5, 15, 30, 60]);
        assert_eq!(sizes(usize::MAX).last(), Some(&usize::MAX));
    }
}
