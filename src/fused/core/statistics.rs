//! Running statistics of several ranks: each has its own in a pass, and all have their mean after it.

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use super::ranks::Ranks;
use crate::device::{caught, moved};
use crate::error::FusedError;
use crate::parameters::{AnyTensor, exchange, merge_pending, values};
use crate::pass::Closure;
use crate::policy::Goal;
use crate::tap::node;
use crate::weights::{Identity, KeptStatistics};

/// Those of one rank at a moment.
type Look = HashMap<ParamId, AnyTensor>;

/// The running statistics of all ranks before a pass.
pub(super) struct SharedStatistics<M: Module> {
    /// In one of two passes, those that the other is to see, too; of the first rank they are seen to where both passes are.
    kept: Vec<KeptStatistics<M>>,
    /// Those of the ranks that take part.
    before: Vec<Option<Look>>,
}

impl<M: Module> SharedStatistics<M> {
    pub(super) fn before(ranks: &Ranks<M>, rehearses: bool, closures: &[Closure]) -> Self {
        let modules = || ranks.forms.iter().map(|form| &form.module);
        let kept = match rehearses {
            true => modules().skip(1).map(KeptStatistics::of).collect(),
            false => Vec::new(),
        };
        let before = modules().zip(closures).map(|(module, closure)| {
            let takes_part = *closure != Closure::Nothing;
            takes_part.then(|| values(module, &ranks.statistics))
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
        self.kept.into_iter().for_each(KeptStatistics::commit);
        if self.before.iter().all(Option::is_none) {
            return ended;
        }
        let modules = ranks.forms.iter().map(|form| &form.module);
        let modules: Vec<_> = modules.zip(self.before).collect();
        let averaged = caught(|| average(ranks, &modules));
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

/// Gives all `replicas` the mean of what those have that have updated a statistic since they were looked at, in
/// their order: so does Burn where threads share them. Those without a look have updated none.
fn average<M: Module>(ranks: &Ranks<M>, replicas: &[(&M, Option<Look>)]) {
    if ranks.statistics.is_empty() {
        return;
    }
    // Each on the device of the first replica that has updated it, and how many have.
    let mut sums = HashMap::<ParamId, (AnyTensor, usize)>::new();
    for (module, before) in replicas {
        let Some(before) = before else {
            continue;
        };
        merge_pending(*module);
        for (id, value) in values(*module, &ranks.statistics) {
            if before.get(&id).is_none_or(|before| is_same(before, &value)) {
                continue;
            }
            let value = value.untyped().inner();
            let added = match sums.remove(&id) {
                Some((sum, replicas)) => {
                    let value = moved(value, &sum.device());
                    (sum.untyped().add(value).into(), replicas + 1)
                }
                None => (value.into(), 1),
            };
            sums.insert(id, added);
        }
    }
    for (module, _) in replicas {
        drop(exchange(
            (*module).clone(),
            |param| sums.contains_key(&param.id()),
            |id, value| {
                let (sum, replicas) = &sums[&id];
                let sum = sum.clone().untyped();
                value.replaced_by(sum.div_scalar(*replicas as f64))
            },
        ));
    }
}

/// Whether nobody has put `after` in the place of `before`, though it were of the same value: a mapper makes another node of
/// what it leaves as it is, and not all backends tell where elements lie.
fn is_same(before: &AnyTensor, after: &AnyTensor) -> bool {
    let of_both = node(before).zip(node(after));
    of_both.is_some_and(|(before, after)| before == after)
        || Identity::of::<1>(before).is_surely(&Identity::of::<1>(after))
}
