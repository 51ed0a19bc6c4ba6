//! What a training takes on a rung, and which of these ways costs least.

use crate::config::FusedConfig;
use crate::estimate::States;

use super::beside::Beside;
use super::expected::Outlook;
use super::facts::{AT_ONCE, Facts};
use super::ladder::{Rung, in_millionths};
use super::level::Level;
use super::pass::{Kept, Pass};
use super::split::Split;
use super::technique::Technique;
use super::variant::{Footing, Variant};

/// The margin at best: a pass may hold less in a step than it did alone.
const HOPED: f64 = 0.97;

/// What threads keep for themselves differs from run to run by about so many bytes.
const SLACK: usize = 1 << 17;

/// And if steps were made.
const SEEN_SLACK: usize = 1 << 15;

/// A part of the batch, that a rank goes through again and again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) pass: &'a Pass,
    pub(super) split: Split,
}

/// A way to train.
#[derive(Clone, Debug)]
pub(super) struct Choice<'a> {
    pub(super) level: &'a Level,
    pub(super) variant: &'a Variant,
    pub(super) part: Part<'a>,
    pub(super) kept: Kept,
    /// Bytes at the peak where the model computes, and on the host if that is not the same.
    pub(super) device: usize,
    pub(super) host: usize,
    /// Of a step.
    pub(super) seconds: f64,
}

impl Choice<'_> {
    pub(super) fn rung(&self) -> Rung {
        Rung {
            name: self.level.name(self.part.split, &self.kept.keep),
            device_bytes: self.device,
            host_bytes: self.host,
            seconds: Some(self.seconds),
            fidelity: self.level.fidelity(self.part.split),
        }
    }
}

/// The ways to train on a rung, as an outlook has them.
pub(super) struct Ways<'a> {
    facts: &'a Facts,
    level: &'a Level,
    variant: &'a Variant,
    states: &'a States,
    config: FusedConfig,
    outlook: Outlook,
    /// What a pass is taken to hold, in parts of what was measured, and what is held beside all that is known.
    margin: f64,
    slack: usize,
}

impl Facts {
    /// The ways to train on a rung; none if its variant was not measured, or the optimizer can't keep states so.
    pub(super) fn ways<'a>(&'a self, level: &'a Level, outlook: Outlook) -> Option<Ways<'a>> {
        let variant = self.variant(level.footing())?;
        let (margin, slack) = match outlook {
            Outlook::Hoped => (HOPED, 0),
            Outlook::Seen | Outlook::Untried => (self.margin, SLACK),
        };
        Some(Ways {
            facts: self,
            level,
            variant,
            states: variant.states_in(level.formats())?,
            config: level.config(&self.config),
            outlook,
            margin,
            slack,
        })
    }

    /// The cheapest way on the first rung on which something fits.
    pub(super) fn best(&self, budget: usize, outlook: Outlook) -> Option<Choice<'_>> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| self.ways(level, outlook)?.cheapest(budget))
    }

    /// The least that a training on this footing holds beside a pass.
    pub(super) fn least_beside(&self, footing: Footing) -> usize {
        let levels = self.levels_on(footing);
        let ways = levels.filter_map(|level| self.ways(level, Outlook::Seen));
        let beside = ways.map(|ways| ways.beside_a_pass());
        beside.min().unwrap_or(0)
    }
}

impl<'a> Ways<'a> {
    /// The one that costs least and fits.
    pub(super) fn cheapest(&self, budget: usize) -> Option<Choice<'a>> {
        let first = |blocks| {
            let mut parts = self.parts();
            parts.find_map(|part| self.fitting(part, blocks, budget))
        };
        let without = self.level.parts_first.then(|| first(false)).flatten();
        without.or_else(|| first(self.level.blocks))
    }

    /// The parts that a rank may get, the largest first, each on as many ranks as there are for it.
    fn parts(&self) -> impl Iterator<Item = Part<'a>> {
        let (batch, level) = (self.facts.batch, self.level);
        let passes = self.variant.passes.iter().rev();
        let dividing = passes.filter(move |pass| batch.is_multiple_of(pass.items));
        let parts = dividing.filter_map(move |pass| {
            let count = batch / pass.items;
            let mut ranks = (1..=level.ranks).rev();
            let ranks = ranks.find(|ranks| count.is_multiple_of(*ranks))?;
            let split = Split::of(ranks, count / ranks);
            Some(Part { pass, split })
        });
        parts.filter(move |part| level.parts || !part.split.is_summed())
    }

    /// No block of this part runs twice, or as few as fits.
    fn fitting(&self, part: Part<'a>, blocks: bool, budget: usize) -> Option<Choice<'a>> {
        let fits = |choice: &Choice<'_>| choice.device <= budget;
        let kept = if blocks {
            // What is there when the pass begins is known.
            let known = self.before(self.beside(part.split));
            let in_pass = budget.saturating_sub(known) as f64 / self.margin;
            let run_fits = |run: &Kept| fits(&self.choice(part, run));
            part.pass
                .fewest_twice(in_pass as usize, self.outlook, run_fits)
        } else {
            part.pass.none_twice().cloned()
        };
        Some(self.choice(part, &kept?)).filter(fits)
    }

    /// The one that takes least.
    pub(super) fn least(&self) -> Option<Choice<'a>> {
        let all = self.parts().flat_map(|part| {
            let none_twice = part.pass.none_twice();
            let none_twice = none_twice.map(|kept| self.choice(part, kept));
            [none_twice, self.all_twice(part)]
        });
        all.flatten().min_by_key(|choice| choice.device)
    }

    /// What the technique that this rung adds would bring at most.
    pub(super) fn at_most(&self) -> Option<Choice<'a>> {
        match self.level.last? {
            Technique::Blocks => self.all_twice(self.parts().next()?),
            Technique::MicroBatches | Technique::Ranks => self.least(),
            _ => None,
        }
    }

    /// All blocks of this part run twice.
    fn all_twice(&self, part: Part<'a>) -> Option<Choice<'a>> {
        let kept = part.pass.all_twice().filter(|_| self.level.blocks)?;
        Some(self.choice(part, kept))
    }

    /// What a training takes that goes through this part with these blocks.
    fn choice(&self, part: Part<'a>, kept: &Kept) -> Choice<'a> {
        let beside = self.beside(part.split);
        let seconds = part.split.accumulation as f64 * kept.run.seconds + beside.seconds;
        Choice {
            level: self.level,
            variant: self.variant,
            part,
            kept: kept.clone(),
            device: self.peak(part, kept, beside),
            host: beside.host,
            seconds: in_millionths(seconds),
        }
    }

    /// Bytes at the peak, as steps have shown, or as the pass and what is held beside it come to.
    fn peak(&self, part: Part<'a>, kept: &Kept, beside: Beside) -> usize {
        let in_pass = kept.run.in_pass() as f64;
        let steps = part.pass.steps_with(&kept.keep, part.split);
        let Some(seen) = steps.and_then(|steps| steps.peak) else {
            let in_pass = (in_pass * self.margin).ceil();
            return self.before(beside).saturating_add(in_pass as usize);
        };
        let held = self.optimizer().saturating_sub(self.variant.notes);
        let more = in_pass * (self.margin - AT_ONCE).max(0.0);
        (seen + held + SEEN_SLACK).saturating_add(more as usize)
    }

    /// What is held when a pass begins.
    fn before(&self, beside: Beside) -> usize {
        self.variant.floor() + self.slack + beside.device
    }

    fn beside(&self, split: Split) -> Beside {
        let summed = split.is_summed() && !self.level.in_state;
        let (variant, states) = (self.variant, self.states);
        Beside::of(variant, states, &self.config, summed, split.ranks)
    }

    /// What is held beside a pass without micro-batches, on as many ranks as there may be.
    pub(super) fn beside_a_pass(&self) -> usize {
        self.beside(Split::of(self.level.ranks, 1)).device
    }

    /// Bytes that the optimizer holds, and takes for an update.
    fn optimizer(&self) -> usize {
        self.states.sum() + self.states.update
    }

    /// Whether steps can tell what this takes: without what an optimizer holds they stay within the budget.
    pub(super) fn can_be_seen(&self, part: Part<'a>, kept: &Kept) -> bool {
        let level = self.level;
        let is_plain = part.split.ranks == 1 && level.waits.is_none() && !level.in_state;
        let is_plain = is_plain && self.config.averaging.is_none() && self.variant.shared == 0;
        let is_new = part.pass.steps_with(&kept.keep, part.split).is_none();
        let device = self.choice(part, kept).device;
        is_plain && is_new && device.saturating_sub(self.optimizer()) <= self.facts.budget
    }
}
