//! Measures passes over more and more items, within a budget.

use burn::module::Module;

use crate::loss::Loss;
use crate::memory;

use super::attempt::{Climber, SLOW};
use super::error::PlanError;
use super::expected::Expected;
use super::pass::{Kept, Pass};
use super::twice::Twice;

/// More blocks than a step has of which no recording has told the number.
const MANY: usize = 1 << 12;

/// Bytes that the first pass takes at least for threads of the backend, activations and notes.
pub(super) const AT_FIRST: usize = 1 << 19;

/// What the next size is computed with may take more than in proportion.
const OTHERWISE: f64 = 1.5;

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
        let mut sizes = sizes(batch);
        // What grows with the items shows in two passes.
        if sizes.get(1).is_some_and(|next| *next > 2) {
            sizes.insert(1, 2);
        }
        for items in sizes {
            let of_twice = self.expected(&passes, items, |pass| pass.all_twice());
            let of_kept = self.expected(&passes, items, |pass| pass.none_twice());
            let no_blocks = passes.first().is_some_and(Pass::has_no_blocks);
            // What did not fit over fewer items does not over more.
            let no_twice = passes.last().is_some_and(|fewer| fewer.twice.is_none());
            let no_kept = passes.last().is_some_and(|it| it.none_twice().is_none());
            let mut pass = Pass::over(items);
            if !no_twice
                && of_twice.is_none_or(|it| self.is_worth(it))
                && let stretch = self.stretch(passes.last(), items, Pass::all_twice)
                && let Some(recorded) = self.passes(items, Vec::new(), of_twice, stretch)?
            {
                pass.note_twice(recorded);
            }
            if let (Some(twice), Some(share)) = (&mut pass.twice, share(&passes)) {
                twice.take_over(share);
            }
            let of_blocks = pass.twice.as_ref().map(|twice| twice.expected(|_| true));
            let fits = match (of_blocks, of_kept) {
                // Blocks that run twice are not always the smaller way.
                (None, None) => passes.is_empty(),
                (of_blocks, of_kept) => {
                    let mut both = of_blocks.into_iter().chain(of_kept);
                    both.all(|it| self.is_worth(it))
                }
            };
            let many = if no_blocks { 0 } else { MANY };
            let keep = vec![true; pass.twice.as_ref().map_or(many, Twice::count)];
            let feared = of_blocks.into_iter().chain(of_kept);
            let feared = feared.max_by_key(|it| it.feared);
            if pass.none_twice().is_none()
                && !no_kept
                && fits
                && let stretch = self.stretch(passes.last(), items, Pass::none_twice)
                && let stretch = stretch.max(pass.stretch())
                && let Some(recorded) = self.passes(items, keep.clone(), feared, stretch)?
            {
                pass.note(keep, recorded.run);
            }
            if pass.is_empty() {
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
        Expected::after(&known, items, self.largest)
    }

    /// The most bytes that a pass over `items` is feared to take until it can be ended, from one over fewer.
    fn stretch(
        &self,
        fewer: Option<&Pass>,
        items: usize,
        of: impl Fn(&Pass) -> Option<Kept>,
    ) -> usize {
        let Some((fewer, known)) = fewer.and_then(|it| Some((it.items, of(it)?.run))) else {
            return self.largest;
        };
        // No gradient is larger for more items.
        let fixed = known.stretch.min(self.largest);
        let grows = (known.stretch - fixed) as f64 * items as f64 / fewer as f64;
        fixed + (grows * OTHERWISE) as usize
    }

    /// Whether a pass may fit.
    fn is_worth(&self, expected: Expected) -> bool {
        expected.hoped <= self.room
    }

    /// Runs a pass with these blocks, and learns from it.
    pub(super) fn check(&mut self, pass: &mut Pass, kept: Kept) -> Result<(), PlanError> {
        let keep = |block: usize| kept.keep.get(block).is_some_and(|keep| *keep);
        let expected = pass.twice.as_ref().map(|twice| twice.expected(keep));
        match self.passes(pass.items, kept.keep.clone(), expected, pass.stretch())? {
            Some(recorded) => pass.note(kept.keep, recorded.run),
            None => pass.note_too_large(kept.keep, self.room),
        }
        Ok(())
    }

    /// How many choices of blocks are tried: of a slow pass, one.
    pub(super) fn tries(&self, passes: &[Pass]) -> usize {
        let mut runs = passes.iter().filter_map(|pass| pass.all_twice());
        let is_slow = runs.any(|twice| twice.run.seconds > SLOW);
        if is_slow { 1 } else { 8 }
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
