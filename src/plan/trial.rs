//! What is chosen is tried, and what would be chosen if all went well: a cheaper way that fits is not passed over for fear.

use burn::module::Module;

use crate::error::FusedError;
use crate::fused::FusedOptimizer;
use crate::loss::Loss;

use super::choice::{Choice, Part};
use super::climb::{Climber, QUICK};
use super::error::PlanError;
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
        let is_chosen = |choice: &Choice| {
            let chosen = chosen.as_ref().map(|(_, chosen)| chosen);
            chosen.is_some_and(|it| it.part == choice.part && it.kept.keep == choice.kept.keep)
        };
        let ways = chosen.iter().chain(&hoped);
        let mut ways = ways.filter(|(_, choice)| choice.part.width == width);
        ways.find_map(|(level, choice)| {
            let pass = facts.pass(choice.part);
            let Choice { part, kept, .. } = choice.clone();
            let trial = if !pass.knows(&kept) {
                (pass.tried() < many).then_some(Self::Pass(kept))
            } else {
                let is_quick = kept.run.seconds <= QUICK && pass.rehearsals() < many;
                let is_new = is_quick && !is_chosen(choice);
                let can = is_new && facts.can_rehearse(level, choice, *budget);
                can.then_some(Self::Steps(kept, part))
            };
            Some((part.pass, trial?))
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
            Self::Pass(kept) => climber.check(pass, &kept),
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

/// Two steps of `fused` that change nothing.
pub(super) fn steps<M: Module, L: Loss>(
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
