//! Running statistics of several ranks: each has its own in a pass, and all have their mean after it.

use burn::module::Module;

use super::ranks::Ranks;
use crate::device::caught;
use crate::error::FusedError;
use crate::pass::{Closure, Reads};
use crate::policy::Goal;
use crate::weights::{KeptStatistics, Look};

/// The running statistics of all ranks before a pass.
pub(super) struct SharedStatistics<M: Module> {
    /// In one of two passes, those that the other is to see, too; of the first rank they are seen to where both passes are.
    kept: Vec<KeptStatistics<M>>,
    /// Those of the ranks that take part.
    before: Vec<Option<Look>>,
}

impl<M: Module> SharedStatistics<M> {
    pub(super) fn before(ranks: &Ranks<M>, rehearses: bool, closures: &[Closure]) -> Self {
        let modules = || ranks.all.iter().map(|rank| &rank.form.module);
        let kept = match rehearses {
            true => modules().skip(1).map(KeptStatistics::of).collect(),
            false => Vec::new(),
        };
        let before = modules().zip(closures).map(|(module, closure)| {
            let takes_part = *closure != Closure::Nothing;
            takes_part.then(|| ranks.statistics.look(module))
        });
        let before = before.collect();
        Self { kept, before }
    }

    /// The pass has `ended`: gives all the mean of what those have that have updated a statistic, or those of before if the
    /// pass is to come again.
    pub(super) fn after<R>(
        self,
        ranks: &Ranks<M>,
        goal: Goal,
        ended: Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        if goal == Goal::Measure || matches!(ended, Err(FusedError::RandomNumbers { .. })) {
            return ended;
        }
        let commit = |statistics: KeptStatistics<M>| statistics.commit(Reads::InTime);
        self.kept.into_iter().for_each(commit);
        if self.before.iter().all(Option::is_none) {
            return ended;
        }
        let modules = ranks.all.iter().map(|rank| &rank.form.module);
        let modules: Vec<_> = modules.zip(self.before).collect();
        let averaged = caught(|| ranks.statistics.average(&modules));
        // A device that is lost has ended the pass already.
        match (ended, averaged) {
            (Ok(_), Err(reason)) => Err(FusedError::Replicas {
                reason: format!(
                    "the running statistics of all ranks could not be averaged: {reason}"
                ),
            }),
            (ended, _) => ended,
        }
    }
}
