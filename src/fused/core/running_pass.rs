//! One pass of all ranks, from its beginning to its end.

use std::sync::Arc;

use backburn_base::caught::{Caught, catch};
use backburn_memory::Category;
use burn::module::{Module, ParamId};

use super::rank_pass::RankPass;
use super::ranks::Ranks;
use crate::error::FusedError;
use crate::fused::Loss;
use crate::pass::{FailedIn, Observers, PassSettings, Stage, StepEvent};
use crate::policy::GradientUse;
use crate::replica::Group;
use crate::weights::{AttachedModule, MasterParam, ParameterReport};

/// A pass in flight. [`end`](Self::end) ends accumulated sums together on all ranks: a commit keeps them, a drop rolls them back. An
/// applied gradient stays applied, and an overwritten sum is lost. [`Core::pass`](super::Core::pass) ends the running statistics.
pub(in crate::fused) struct RunningPass<'a, M: Module> {
    pub(in crate::fused) attached_modules: &'a mut [AttachedModule<M>],
    /// The part of each rank; empty after the end.
    pub(in crate::fused) rank_passes: Vec<RankPass>,
    /// The group of replicas, also of one.
    pub(in crate::fused) group: Option<&'a Group>,
}

/// A function that runs the closures of a step in a pass. A step may have several passes.
pub(super) type PassClosure<'a, M, R> =
    dyn FnMut(&RunningPass<'_, M>) -> Result<R, FusedError> + 'a;

impl<'a, M: Module> RunningPass<'a, M> {
    /// Begins a pass. The random numbers of `settings` hold the lock of the generators.
    pub(super) fn begin(ranks: &'a mut Ranks<M>, settings: PassSettings) -> Self {
        let mut running_pass = Self {
            rank_passes: Vec::new(),
            attached_modules: &mut ranks.attached_modules,
            group: ranks.group.as_deref(),
        };
        for attached in running_pass.attached_modules.iter() {
            let transfers = attached.context.transfers.as_ref();
            let transfers = transfers.filter(|_| settings.checkpointing.offload_inputs);
            let prefetcher = attached.has_block_copies.then(|| attached.prefetcher());
            let session = &attached.session;
            running_pass.rank_passes.push(RankPass {
                pass: session.begin(&settings, prefetcher, transfers.cloned()),
                local_params: attached.local_params.clone(),
                context: attached.context.clone(),
                is_asynchronous: ranks.is_asynchronous,
            });
        }
        if let Some(observers) = &running_pass.rank_passes[0].pass.observers {
            let attached = &running_pass.attached_modules[0];
            let trained = attached
                .local_params
                .masters()
                .filter_map(MasterParam::find);
            for value in trained.chain(attached.frozen_values()) {
                observers.emit(StepEvent::Tensor(Category::Parameter, &value));
            }
            observers.emit(StepEvent::Forward);
        }
        running_pass
    }

    /// Runs the forward and backward pass of the first rank.
    pub(in crate::fused) fn run_loss<L: Loss>(
        &self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        let (rank, model) = (&self.rank_passes[0], &self.attached_modules[0].module);
        rank.run(|| rank.forward_backward(model, forward))
    }

    /// Returns an error if the backward passes of all ranks together have reached no parameter, unless they belong to a step that
    /// applies accumulated gradients.
    pub(in crate::fused) fn check_reached(&self, is_step: bool) -> Result<(), FusedError> {
        let attached = &self.attached_modules[0];
        if is_step && attached.local_params.have_accumulated() {
            return Ok(());
        }
        let checks = self.rank_passes.iter().map(|rank| {
            rank.check_reached(&attached.skeleton, &rank.pass.retained_gradients.lock())
        });
        checks.reduce(Result::or).unwrap_or(Ok(()))
    }

    /// Takes the failure out of the pass and returns it as an error; of several ranks, that of the first to fail.
    pub(super) fn take_failure(&self) -> Result<(), FusedError> {
        let failures = self.rank_passes.iter().enumerate();
        let failures =
            failures.filter_map(
                |(rank, RankPass { pass, .. })| match &mut *pass.stage.lock() {
                    Stage::Failed(failed) => Some((rank, pass.numbers.repeats, failed.by.take()?)),
                    _ => None,
                },
            );
        let first = self.group.and_then(|group| group.flow.failed());
        let first = failures.min_by_key(|(rank, ..)| (Some(*rank) != first, *rank));
        match (first, self.group) {
            (None, _) => Ok(()),
            (Some((.., failure)), None) => failure.into_result(),
            (Some((rank, repeated, failure)), Some(group)) => {
                Err(failure.on_rank(rank, group.device(rank), repeated))
            }
        }
    }

    /// Applies the gradients of the retained parameters of every rank, in the pass of the rank.
    pub(super) fn apply_retained(&mut self, gradient_use: GradientUse) -> Result<(), FusedError> {
        if gradient_use.steps() {
            let attached_modules = self.attached_modules.iter_mut();
            attached_modules.for_each(AttachedModule::drop_retained_values);
        }
        for RankPass {
            pass,
            local_params,
            context,
            ..
        } in &self.rank_passes
        {
            let gradients = std::mem::take(&mut *pass.retained_gradients.lock());
            pass.guarded(FailedIn::Update, || {
                local_params.report_retained(pass, gradients)
            });
            if let Some(transfers) = &context.transfers {
                transfers.wait();
            }
        }
        self.take_failure()
    }

    /// Commits the pass on all ranks, or rolls it back; does nothing after the end. Returns a report per parameter over all ranks, in
    /// module order, and the panic of an observer that received the end.
    pub(super) fn end(
        &mut self,
        commits: bool,
    ) -> (Vec<(ParamId, ParameterReport)>, Option<Caught>) {
        let rank_passes = std::mem::take(&mut self.rank_passes);
        for RankPass { pass, .. } in &rank_passes {
            // A clone of the model or another thread may still hold the pass, and must see that it is over: then they read no
            // parameter and don't take the lock of the generators.
            *pass.stage.lock() = Stage::Over;
        }
        let observers = rank_passes
            .first()
            .and_then(|rank| rank.pass.observers.clone());
        let mut parameters = rank_passes
            .iter()
            .map(|rank| rank.local_params.end(commits));
        let mut reports = parameters.next().unwrap_or_default();
        for rank in parameters {
            // Every rank has the same parameters in the same order.
            let both = reports.iter_mut().zip(rank);
            both.for_each(|((_, greatest), (_, report))| *greatest = report.max(*greatest));
        }
        for (attached, RankPass { pass, .. }) in self.attached_modules.iter_mut().zip(&rank_passes)
        {
            if !attached.local_params.retained.is_empty() {
                attached.restore_retained_values();
            }
            if commits && attached.has_block_copies {
                attached.update_block_order(&pass.blocks.block_order.lock());
            }
            attached.session.end(pass, commits);
        }
        drop(rank_passes);
        let emit = |observers: Arc<Observers>| catch(|| observers.emit(StepEvent::End)).err();
        (reports, observers.and_then(emit))
    }
}

impl<M: Module> Drop for RunningPass<'_, M> {
    fn drop(&mut self) {
        if let (_, Some(panic)) = self.end(false) {
            log::warn!(
                "an observer panicked at the end of a failed step: {}",
                panic.message()
            );
        }
    }
}
