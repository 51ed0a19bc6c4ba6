//! A step in two passes, for what must know all gradients before the first is used.

use std::sync::Arc;

use burn::module::Module;

use super::Core;
use super::rank_pass::Task;
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::pass::{Reads, Rehearsal, Session};
use crate::policy::{Goal, Norm, Plan};
use crate::random::{Patience, Stream};
use crate::tap::sweep;
use crate::weights::KeptStatistics;

/// The running states of a model, which both passes see alike.
struct States<M: Module> {
    session: Arc<Session>,
    /// None once the second pass has updated them.
    kept: Option<KeptStatistics<M>>,
    /// How the model reads its own, if that is known.
    known: Option<Reads>,
}

impl<M: Module> Core<M> {
    /// First all gradients are measured, then they are used; once more from the start if another thread
    /// has drawn random numbers in between.
    pub(super) fn two_passes<R>(&mut self, task: &mut Task<'_, M, R>) -> Result<R, FusedError> {
        let session = self.ranks.session().clone();
        let random = Stream::new(self.ranks.devices.clone(), |device| {
            session.seeds.next(device)
        });
        let reads = !random.devices.iter().any(is_cubecl);
        let mut states = States::before(&self.ranks.form().module, session);
        let mut patience = Patience::new();
        loop {
            let rehearsal = Arc::new(Rehearsal::new(random.clone(), reads));
            let ended = self.rehearsed(&rehearsal, &mut states, task);
            // A block has been patient itself.
            let repeats =
                |error: &FusedError| error.is_of_passes() && reads && !rehearsal.is_used();
            if !ended.as_ref().is_err_and(repeats) || !patience.lasts() {
                return ended;
            }
            random.devices.iter().for_each(sweep);
            states.begin_again();
        }
    }

    fn rehearsed<R>(
        &mut self,
        rehearsal: &Arc<Rehearsal>,
        states: &mut States<M>,
        task: &mut Task<'_, M, R>,
    ) -> Result<R, FusedError> {
        // Of several ranks each starts its own.
        let ranks = self.ranks.are_several();
        let mut pass = |core: &mut Self, plan: &Plan| {
            if !ranks {
                rehearsal.random.start();
            }
            core.pass(plan.clone(), Some(rehearsal.clone()), task)
        };
        let plan = self.policies.plan(Goal::Measure, None);
        let output = pass(self, &plan)?;
        states.are_measured();
        let Some((norm, coefficient)) = self.norm_to_use(&plan)? else {
            return Ok(output);
        };
        let value = norm.value;
        let mut plan = self.policies.plan(Goal::Update, coefficient);
        if !rehearsal.reads() || ranks || rehearsal.random.is_touched() {
            plan = plan.comparing(norm, !rehearsal.reads());
        }
        states.kept.iter().for_each(KeptStatistics::rewind);
        let output = pass(self, &plan);
        if !matches!(output, Err(FusedError::RandomNumbers { .. })) {
            states.are_updated(rehearsal.reads() && output.is_ok());
        }
        let output = output?;
        self.unconfirmed = rehearsal.unconfirmed();
        plan.leave(&mut self.unconfirmed);
        self.adapt(&plan, coefficient, Some(value), false);
        Ok(output)
    }

    /// The same with gradients that are there: nothing is computed twice, and no random numbers are drawn.
    pub(super) fn use_waiting<R>(&mut self, task: &mut Task<'_, M, R>) -> Result<R, FusedError> {
        let plan = self.policies.plan(Goal::Measure, None);
        let output = self.pass(plan.clone(), None, task)?;
        let Some((norm, coefficient)) = self.norm_to_use(&plan)? else {
            return Ok(output);
        };
        let plan = self.policies.plan(Goal::Update, coefficient);
        let output = self.pass(plan.clone(), None, task)?;
        self.adapt(&plan, coefficient, Some(norm.value), false);
        Ok(output)
    }

    /// The norm that a pass has measured, and what the gradients are multiplied by for it. None if the step is skipped for an
    /// overflow.
    fn norm_to_use(&mut self, plan: &Plan) -> Result<Option<(Norm, Option<f64>)>, FusedError> {
        let before = std::mem::take(&mut self.unconfirmed);
        let norm = plan.norm(&before)?;
        let (norm, agree) = norm.expect("the pass measures");
        if !agree {
            return Err(FusedError::other_passes_before());
        }
        if let Some(path) = norm.not_finite {
            if !self.policies.can_back_off() {
                let norm = norm.value;
                return Err(FusedError::NormNotFinite { norm, path });
            }
            self.drop_accumulated();
            self.adapt(plan, None, Some(norm.value), true);
            return Ok(None);
        }
        let coefficient = self.policies.coefficient(norm.value);
        Ok(Some((norm, coefficient)))
    }
}

impl<M: Module> States<M> {
    fn before(module: &M, session: Arc<Session>) -> Self {
        let known = session.learned.reads();
        Self {
            kept: Some(KeptStatistics::before(module, known)),
            known,
            session,
        }
    }

    /// The first pass is over.
    fn are_measured(&mut self) {
        if self.known.is_none() && self.session.learned.reads() == Some(Reads::InTime) {
            log::warn!(
                "the model reads its own running states, as a block that runs twice has shown: they are updated in both \
                 passes of this step, so twice"
            );
        }
        self.kept.iter_mut().for_each(KeptStatistics::see);
    }

    /// Whatever came of the second pass, its closure has updated them; that it is `alike` the first shows how they are read.
    fn are_updated(&mut self, alike: bool) {
        if let Some(kept) = self.kept.take() {
            if alike && kept.differ() {
                self.session.learned.have_read(kept.reads);
            }
            kept.commit();
        }
    }

    /// The passes were not alike. It may be no other thread, but that the model reads its states otherwise.
    fn begin_again(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.see();
            if self.known.is_none() && kept.differ() {
                kept.reads = kept.reads.other();
            }
            kept.rewind();
        }
    }
}
