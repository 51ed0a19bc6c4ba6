//! What is chosen is tried, and what would be chosen if all went well: a cheaper way that fits is not passed over for fear.

use burn::module::Module;

use crate::loss::Loss;

use super::choice::{Choice, Part};
use super::error::PlanError;
use super::expected::Outlook;
use super::facts::Facts;
use super::pass::{Pass, Steps};
use super::probe::{Probe, QUICK, SLOW};
use super::split::Split;
use super::variant::Variant;

/// What is to be tried, since it is not known of a choice yet.
pub(super) struct Trial {
    items: usize,
    keep: Vec<bool>,
    what: What,
}

enum What {
    /// What a pass with these blocks holds.
    Pass,
    /// What steps take with so many micro-batches.
    Steps(Split),
}

impl Trial {
    fn of(pass: &Pass, keep: Vec<bool>, what: What) -> Self {
        let items = pass.items;
        Self { items, keep, what }
    }

    /// What comes next with this `variant`.
    pub(super) fn next(facts: &Facts, variant: &Variant) -> Option<Self> {
        let many = tries(&variant.passes);
        let best = |outlook| {
            let best = facts.best(facts.budget, outlook);
            best.filter(|choice| choice.variant.footing == variant.footing)
        };
        let chosen = best(Outlook::Seen);
        // Where not all is seen, there is more to fear than to hope.
        let hoped = (!facts.apart).then(|| best(Outlook::Hoped)).flatten();
        // Where fusing alone fits, there is nothing cheaper.
        let is_free = chosen.as_ref().is_some_and(|it| it.level.last.is_none());
        let unknown = |choice: &Choice<'_>| {
            let (Part { pass, split }, kept) = (choice.part, &choice.kept);
            let what = if !pass.knows(&kept.keep) {
                (pass.tried() < many).then_some(What::Pass)
            } else {
                let is_quick = kept.run.seconds <= QUICK && pass.steps.len() < many;
                let ways = facts.ways(choice.level, Outlook::Seen)?;
                let can_be_seen = is_quick && !is_free && ways.can_be_seen(choice.part, kept);
                can_be_seen.then_some(What::Steps(split))
            };
            Some(Self::of(pass, kept.keep.clone(), what?))
        };
        let trial = chosen.iter().chain(&hoped).find_map(unknown);
        // What a recording says of blocks is not always right.
        trial.or_else(|| {
            let Choice { part, kept, .. } = chosen.filter(|_| !facts.apart)?;
            let more = part.pass.one_more(&kept.keep, facts.budget)?;
            (part.pass.tried() < many).then(|| Self::of(part.pass, more, What::Pass))
        })
    }

    /// Tries it, and notes what it has told of one of these `passes`.
    pub(super) fn run<M: Module, L: Loss, F: Fn(&M, usize) -> L>(
        self,
        probe: &mut Probe<'_, M, F>,
        passes: &mut [Pass],
    ) -> Result<(), PlanError> {
        let Self { items, keep, what } = self;
        let pass = passes.iter_mut().find(|pass| pass.items == items);
        let pass = pass.expect("it was chosen from them");
        match what {
            What::Pass => match probe.pass(items, &keep, pass.expected(&keep))? {
                Some(recorded) => pass.note(keep, recorded.run),
                None => pass.note_too_large(keep, probe.room),
            },
            What::Steps(split) => {
                let peak = probe.steps(items, &keep, split.accumulation)?;
                let summed = split.is_summed();
                pass.steps.push(Steps { keep, summed, peak });
            }
        }
        Ok(())
    }
}

/// How many passes with some blocks of each kind are tried, and how many steps: of slow ones, one.
fn tries(passes: &[Pass]) -> usize {
    let mut twice = passes.iter().filter_map(Pass::all_twice);
    let is_slow = twice.any(|twice| twice.run.seconds > SLOW);
    if is_slow { 1 } else { 8 }
}
