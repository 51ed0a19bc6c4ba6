//! A step in two passes, for what must know all gradients before the first is used.

use std::sync::Arc;

use burn::module::Module;

use super::Core;
use super::run::{Computed, RankPass};
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::pass::{Closure, Reads, Rehearsal};
use crate::policy::{Adaptive, Goal};
use crate::random::{Patience, Stream};
use crate::tap::sweep;
use crate::weights::KeptStatistics;

impl<M: Module> Core<M> {
    /// First all gradients are measured, then they are used; once more from the start if another thread
    /// has drawn random numbers in between.
    pub(super) fn two_passes<R>(
        &mut self,
        closures: &[Closure],
        mut compute: impl FnMut(Vec<(RankPass, &M)>) -> Computed<R>,
    ) -> Result<R, FusedError> {
        let session = self.ranks.session().clone();
        let random = Stream::new(self.ranks.devices.clone(), |device| {
            session.next_seed(device)
        });
        let reads = !random.devices.iter().any(is_cubecl);
        let mut patience = Patience::new();
        let known = session.learned.reads();
        let mut statistics = Some(KeptStatistics::before(&self.ranks.form().module, known));
        let mut states = known.unwrap_or_default();
        loop {
            let rehearsal = Arc::new(Rehearsal::new(random.clone(), reads));
            match self.rehearsed(
                &rehearsal,
                &mut statistics,
                known,
                states,
                closures,
                &mut compute,
            ) {
                // A block has been patient itself.
                Err(error)
                    if error.is_of_passes()
                        && reads
                        && !rehearsal.is_used()
                        && patience.lasts() =>
                {
                    random.devices.iter().for_each(sweep);
                    if let Some(kept) = &mut statistics {
                        kept.see();
                        // It may be no other thread, but that the model reads its states otherwise.
                        if known.is_none() && kept.differ() {
                            states = states.other();
                        }
                        kept.rewind(states);
                    }
                }
                ended => return ended,
            }
        }
    }

    fn rehearsed<R>(
        &mut self,
        rehearsal: &Arc<Rehearsal>,
        statistics: &mut Option<KeptStatistics<M>>,
        known: Option<Reads>,
        states: Reads,
        closures: &[Closure],
        compute: &mut impl FnMut(Vec<(RankPass, &M)>) -> Computed<R>,
    ) -> Result<R, FusedError> {
        // Of several ranks each starts its own.
        let ranks = self.ranks.all.len() > 1;
        let start = || {
            if !ranks {
                rehearsal.start();
            }
            Some(rehearsal.clone())
        };
        let learned = self.ranks.session().learned.clone();
        let plan = self.policies.plan(Goal::Measure, None);
        let output = self.pass(plan.clone(), start(), closures, &mut *compute)?;
        if known.is_none() && learned.reads() == Some(Reads::InTime) {
            log::warn!(
                "the model reads its own running states, as a block that runs twice has shown: they are updated in both \
                 passes of this step, so twice"
            );
        }
        statistics.iter_mut().for_each(KeptStatistics::see);
        let before = std::mem::take(&mut self.unconfirmed);
        let norm = plan.norm_and_confirm(&before)?;
        let (norm, agree) = norm.expect("the pass measures");
        if !agree {
            return Err(FusedError::other_passes_before());
        }
        let adaptive = self.policies.adaptive.as_ref();
        if let Some(path) = norm.not_finite {
            if !adaptive.is_some_and(Adaptive::can_back_off) {
                let norm = norm.value;
                return Err(FusedError::NormNotFinite { norm, path });
            }
            self.drop_accumulated();
            self.adapt(&plan, None, Some(norm.value), true);
            return Ok(output);
        }
        let coefficient = adaptive.and_then(|adaptive| adaptive.coefficient(norm.value));
        let value = norm.value;
        let mut plan = self.policies.plan(Goal::Update, coefficient);
        if !rehearsal.reads() {
            plan = plan.comparing_later(norm);
        } else if ranks || rehearsal.draws() {
            plan = plan.comparing(norm);
        }
        statistics.iter().for_each(|kept| kept.rewind(states));
        let output = self.pass(plan.clone(), start(), closures, compute);
        if !matches!(output, Err(FusedError::RandomNumbers { .. })) {
            // Whatever came of it, the forward pass has updated them.
            if let Some(updated) = statistics.take() {
                if rehearsal.reads() && output.is_ok() && updated.differ() {
                    learned.have_read(states);
                }
                updated.commit(states);
            }
        }
        let output = output?;
        self.unconfirmed = rehearsal.unconfirmed();
        plan.leave(&mut self.unconfirmed);
        self.adapt(&plan, coefficient, Some(value), false);
        Ok(output)
    }
}
