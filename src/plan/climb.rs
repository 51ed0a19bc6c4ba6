//! Measures passes over more and more items, within a budget.

use burn::module::Module;

use crate::loss::Loss;
use crate::memory;

use super::error::PlanError;
use super::expected::Expected;
use super::pass::{Kept, Pass};
use super::probe::Probe;
use super::twice::Twice;
use super::variant::AT_FIRST;

/// More blocks than a step has of which no recording has told the number.
const MANY: usize = 1 << 12;

impl<M: Module, L: Loss, F: Fn(&M, usize) -> L> Probe<'_, M, F> {
    /// Measures passes over more and more items of a batch, as long as there is room for the next one.
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
            let pass = self.pass_after(&passes, items)?;
            if pass.is_empty() {
                break;
            }
            passes.push(pass);
        }
        Ok(passes)
    }

    /// Passes over `items`, with blocks that run twice and with blocks that don't, where those over `fewer` say that it is worth it.
    fn pass_after(&mut self, fewer: &[Pass], items: usize) -> Result<Pass, PlanError> {
        let (room, largest) = (self.room, self.largest);
        let expected = |of: fn(&Pass) -> Option<&Kept>| {
            let known = fewer
                .iter()
                .filter_map(|pass| Some((pass.items, of(pass)?.run)));
            Expected::after(&known.collect::<Vec<_>>(), items, largest)
        };
        let is_worth = |it: &Expected| it.is_worth_a_try(room);
        // What did not fit over fewer items does not over more.
        let fitted =
            |of: fn(&Pass) -> Option<&Kept>| fewer.last().is_none_or(|it| of(it).is_some());

        let mut pass = Pass::over(items);
        let of_twice = expected(Pass::all_twice);
        if fitted(Pass::all_twice)
            && of_twice.as_ref().is_none_or(is_worth)
            && let Some(recorded) = self.pass(items, &[], of_twice)?
        {
            pass.note_twice(&recorded);
        }
        // What others have told of blocks that keep their activations.
        let mut known = fewer.iter().rev();
        let known = known.find(|pass| pass.none_twice().is_some());
        if let Some(twice) = &mut pass.twice
            && let Some(known) = known.and_then(|pass| pass.twice.as_ref())
        {
            twice.take_over(known);
        }
        let no_blocks = fewer.first().is_some_and(Pass::has_no_blocks);
        let many = if no_blocks { 0 } else { MANY };
        let keep = vec![true; pass.twice.as_ref().map_or(many, Twice::count)];
        // Blocks that run twice are not always the smaller way.
        let of_both = match (pass.expected(&keep), expected(Pass::none_twice)) {
            (Some(of_blocks), Some(of_kept)) => Some(of_blocks.worse(of_kept)),
            (of_blocks, of_kept) => of_blocks.or(of_kept),
        };
        if pass.none_twice().is_none()
            && fitted(Pass::none_twice)
            && of_both.as_ref().is_none_or(is_worth)
            && let Some(recorded) = self.pass(items, &keep, of_both)?
        {
            pass.note(keep, recorded.run);
        }
        Ok(pass)
    }
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
