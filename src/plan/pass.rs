//! What is known of passes over so many items.

use super::expected::{Expected, Outlook};
use super::run::{Recorded, Run};
use super::split::Split;
use super::twice::Twice;

/// Passes over so many items, as they were measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    pub(super) items: usize,
    /// Those that came to their end; the first is the one whose blocks all run twice, if there is one.
    runs: Vec<Kept>,
    /// The blocks that kept their activations where the pass did not fit.
    too_large: Vec<Vec<bool>>,
    /// What the recording of the first one tells of others, if it has blocks.
    pub(super) twice: Option<Twice>,
    pub(super) steps: Vec<Steps>,
}

/// Which blocks keep their activations, and what the pass takes then.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) keep: Vec<bool>,
    pub(super) run: Run,
}

/// Steps that were made, whose optimizer holds nothing.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) keep: Vec<bool>,
    /// Whether gradients were summed up.
    pub(super) summed: bool,
    /// The most bytes in use, with all that was there before; none if the steps did not come to their end.
    pub(super) peak: Option<usize>,
}

impl Kept {
    /// Whether no block runs twice.
    fn is_all(&self) -> bool {
        self.keep.iter().all(|keep| *keep)
    }
}

/// Number of blocks that keep their activations.
pub(super) fn count(keep: &[bool]) -> usize {
    keep.iter().filter(|keep| **keep).count()
}

impl Pass {
    /// None yet.
    pub(super) fn over(items: usize) -> Self {
        Self {
            items,
            ..Self::default()
        }
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether it is known to have no block.
    pub(super) fn has_no_blocks(&self) -> bool {
        self.runs.iter().any(|run| run.keep.is_empty())
    }

    /// Notes a pass whose blocks all run twice, or that has none.
    pub(super) fn note_twice(&mut self, recorded: &Recorded) {
        self.twice = Twice::of(recorded);
        let keep = vec![false; self.twice.as_ref().map_or(0, Twice::count)];
        let run = recorded.run;
        self.runs.push(Kept { keep, run });
    }

    /// Notes a pass with these blocks.
    pub(super) fn note(&mut self, keep: Vec<bool>, run: Run) {
        let start = self.runs.first().map_or(run.start, |first| first.run.start);
        // As if it had begun with the same.
        let run = Run {
            start,
            peak: start + run.in_pass(),
            forward: start + run.forward.saturating_sub(run.start),
            ..run
        };
        if let Some(twice) = &mut self.twice {
            twice.learn(&keep, run.peak);
        }
        self.runs.push(Kept { keep, run });
    }

    /// Notes that a pass with these blocks takes more than so many `bytes`.
    pub(super) fn note_too_large(&mut self, keep: Vec<bool>, bytes: usize) {
        if let Some(twice) = &mut self.twice {
            twice.learn(&keep, bytes);
        }
        self.too_large.push(keep);
    }

    /// The steps with these blocks, if they were made.
    pub(super) fn steps_with(&self, keep: &[bool], split: Split) -> Option<&Steps> {
        let mut steps = self.steps.iter();
        steps.find(|it| it.keep == keep && it.summed == split.is_summed())
    }

    /// Number of passes that were tried with some blocks of each kind.
    pub(super) fn tried(&self) -> usize {
        let mixed = self
            .runs
            .iter()
            .filter(|run| !run.is_all() && count(&run.keep) > 0);
        mixed.count() + self.too_large.len()
    }

    /// Whether a pass was tried with these blocks.
    pub(super) fn knows(&self, keep: &[bool]) -> bool {
        self.known().any(|known| known == keep)
    }

    /// The blocks that kept their activations in passes that were tried.
    fn known(&self) -> impl Iterator<Item = &Vec<bool>> {
        self.runs.iter().map(|run| &run.keep).chain(&self.too_large)
    }

    /// Bytes in use when it begins.
    pub(super) fn start(&self) -> usize {
        self.runs.first().map_or(0, |run| run.run.start)
    }

    /// A pass whose blocks all run twice.
    pub(super) fn all_twice(&self) -> Option<&Kept> {
        self.twice.as_ref().and(self.runs.first())
    }

    /// A pass without a block that runs twice.
    pub(super) fn none_twice(&self) -> Option<&Kept> {
        self.runs.iter().find(|run| run.is_all())
    }

    /// What a pass with these blocks is expected to hold, as the one whose blocks run twice tells.
    pub(super) fn expected(&self, keep: &[bool]) -> Option<Expected> {
        let twice = self.twice.as_ref()?;
        Some(Expected {
            start: self.start(),
            hoped: twice.hoped(keep),
            feared: twice.feared(keep, Outlook::Seen),
            stretch: self.runs.iter().map(|run| run.run.stretch).max()?,
        })
    }

    /// The blocks to `keep`, and one more, if no pass with as many is known and one may stay within `room`.
    pub(super) fn one_more(&self, keep: &[bool], room: usize) -> Option<Vec<bool>> {
        let mut more = keep.to_vec();
        let last = more.iter().rposition(|keep| !keep)?;
        more[last] = true;
        let is_known = self.known().any(|keep| count(keep) == count(&more));
        let is_worth = self.expected(&more)?.is_worth_a_try(room);
        (!is_known && is_worth).then_some(more)
    }

    /// As few blocks that run twice as a pass of so many bytes takes; whether one `fits` that was run is known better.
    pub(super) fn fewest_twice(
        &self,
        in_pass: usize,
        outlook: Outlook,
        fits: impl Fn(&Kept) -> bool,
    ) -> Option<Kept> {
        let known = self.runs.iter().filter(|run| fits(run)).cloned();
        let known = known.max_by_key(|run| count(&run.keep));
        let Some(expected) = self.fewest_expected(in_pass, outlook) else {
            return known;
        };
        let is_enough = |known: &Kept| count(&known.keep) >= count(&expected.keep);
        known
            .filter(|known| self.knows(&expected.keep) || is_enough(known))
            .or(Some(expected))
    }

    /// The same as far as the pass whose blocks run twice tells.
    fn fewest_expected(&self, in_pass: usize, outlook: Outlook) -> Option<Kept> {
        let twice = self.twice.as_ref()?;
        let all_twice = self.all_twice()?;
        let budget = all_twice.run.start.saturating_add(in_pass);
        if all_twice.run.peak > budget {
            return None;
        }
        let mut expected = all_twice.clone();
        let none_twice = self.none_twice().map(|kept| kept.run);
        // The last ones cost least: what a block keeps is needed until the backward pass has come back to it.
        for index in (0..expected.keep.len()).rev() {
            expected.keep[index] = true;
            let peak = twice.feared(&expected.keep, outlook);
            let is_too_large = self.is_too_large(&expected.keep)
                || expected.is_all() && none_twice.is_some_and(|run| run.peak > budget);
            if peak <= budget && !is_too_large {
                expected.run.peak = expected.run.peak.max(peak);
            } else {
                expected.keep[index] = false;
            }
        }
        if let Some(none_twice) = none_twice {
            let part = count(&expected.keep) as f64 / expected.keep.len() as f64;
            expected.run.seconds += (none_twice.seconds - all_twice.run.seconds) * part;
        }
        Some(expected)
    }

    /// Whether as many or fewer of these blocks are known to be too large.
    fn is_too_large(&self, keep: &[bool]) -> bool {
        let mut known = self.too_large.iter();
        known.any(|known| known.iter().zip(keep).all(|(known, keep)| keep >= known))
    }
}
