//! What is chosen is tried, and what would be chosen if all went well: a cheaper way that fits is not passed over for fear.

use burn::module::Module;

use crate::loss::Loss;

use super::attempt::{Climber, QUICK};
use super::choice::{Choice, Part};
use super::error::PlanError;
use super::level::Level;
use super::measured::Measured;
use super::optimizer::PlannedOptimizer;
use super::pass::{Kept, Pass};

/// What is not known of a choice yet.
pub(super) enum Trial {
    /// What a pass with these blocks holds.
    Pass(Kept),
    /// What steps take.
    Steps(Kept, Part),
}

impl Trial {
    /// What is to be tried next of the models of this `width`, and on which of its passes: so `many` trials of each at most.
    pub(super) fn next<O: PlannedOptimizer>(
        measured: &Measured<O>,
        width: usize,
        many: usize,
    ) -> Option<(usize, Self)> {
        let Measured { facts, budget, .. } = measured;
        let chosen = measured.best_of(facts, *budget);
        let hoped = (!measured.apart).then(|| measured.best_of(&facts.hoped(), *budget));
        let hoped = hoped.flatten();
        // Where fusing alone fits, there is nothing cheaper.
        let is_free = |(level, _): &(Level, Choice)| level.last.is_none();
        let is_free = chosen.as_ref().is_some_and(is_free);
        let ways = chosen.iter().chain(&hoped);
        let mut ways = ways.filter(|(_, choice)| choice.part.width == width);
        let trial = ways.find_map(|(level, choice)| {
            let pass = facts.pass(choice.part);
            let Choice { part, kept, .. } = choice.clone();
            let trial = if !pass.knows(&kept) {
                (pass.tried() < many).then_some(Self::Pass(kept))
            } else {
                let is_quick = kept.run.seconds <= QUICK && pass.rehearsals() < many;
                let can = is_quick && !is_free && facts.can_rehearse(level, choice, *budget);
                can.then_some(Self::Steps(kept, part))
            };
            Some((part.pass, trial?))
        });
        // What a recording says of blocks is not always right.
        trial.or_else(|| {
            let (_, Choice { part, kept, .. }) = chosen.filter(|_| !measured.apart)?;
            let pass = facts.pass(part);
            let more = pass.one_more(&kept, *budget)?;
            let is_new = part.width == width && pass.tried() < many;
            is_new.then_some((part.pass, Self::Pass(more)))
        })
    }

    /// Tries it, and notes what it has told of `pass`.
    pub(super) fn run<M, L, F>(
        self,
        climber: &mut Climber<'_, M, F>,
        pass: &mut Pass,
    ) -> Result<(), PlanError>
    where
        M: Module,
        L: Loss,
        F: Fn(&M, usize) -> L,
    {
        match self {
            Self::Pass(kept) => climber.check(pass, kept),
            Self::Steps(Kept { keep, .. }, part) => {
                let items = pass.items;
                let accumulation = part.accumulation.min(BUFFERS);
                let peak = climber.rehearse(items, keep.clone(), accumulation)?;
                pass.note_rehearsal(keep, part.accumulation > 1, peak);
                Ok(())
            }
        }
    }
}

/// Micro-batches that show what all hold.
const BUFFERS: usize = 3;
