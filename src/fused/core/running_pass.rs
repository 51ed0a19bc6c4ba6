//! One pass of all ranks, from its beginning to its end.

use std::sync::Arc;

use backburn_base::caught::{Caught, catch};
use backburn_memory::Category;
use burn::module::Module;

use super::rank_pass::RankPass;
use super::ranks::Ranks;
use crate::error::FusedError;
use crate::fused::Loss;
use crate::fused::report::Reports;
use crate::pass::{Failed, FailedIn, Failure, Observers, PassSettings, Stage, StepEvent};
use crate::policy::GradientUse;
use crate::replica::Group;
use crate::weights::{AttachedModule, MasterParam};

/// A pass in flight. [`end`](Self::end) ends accumulated sums together on all ranks: it commits them, or rolls them back. An
/// applied gradient stays applied, and an overwritten sum is lost. [`Core::pass`](super::Core::pass) ends the running statistics.
pub(in crate::fused) struct RunningPass<'a, M: Module> {
    pub(in crate::fused) attached_modules: &'a mut [AttachedModule<M>],
    /// The part of each rank.
    pub(in crate::fused) rank_passes: Vec<RankPass>,
    /// The group of replicas, also of one.
    pub(in crate::fused) group: Option<&'a Group>,
}

/// A function that runs the closures of a step in a pass. A step may have several passes.
pub(super) type PassClosure<'a, M, R> =
    dyn FnMut(&RunningPass<'_, M>) -> Result<R, FusedError> + 'a;

impl<'a, M: Module> RunningPass<'a, M> {
    /// Begins a pass, which must [end](Self::end). The random numbers of `settings` hold the lock of the generators.
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
        running_pass
    }

    /// Emits an event for each parameter, then [`StepEvent::Forward`].
    pub(super) fn emit_begin(&self, observers: &Observers) {
        let attached = &self.attached_modules[0];
        let trained = attached
            .local_params
            .masters()
            .filter_map(MasterParam::find);
        for value in trained.chain(attached.frozen_values()) {
            observers.emit(StepEvent::Tensor(Category::Parameter, &value));
        }
        observers.emit(StepEvent::Forward);
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

    /// Applies the gradients of the retained parameters of every rank, in the pass of the rank, unless a pass has failed.
    pub(super) fn apply_retained(&mut self, gradient_use: GradientUse) {
        if self.rank_passes.iter().any(|rank| rank.pass.has_failed()) {
            return;
        }
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
    }

    /// Ends the pass on all ranks: commits it if the `result` of the closures is `Ok` and no rank has failed, or rolls it back. Reports
    /// a committed pass, with the greatest report of each parameter over all ranks. The panic of an observer is kept in `end_panic`.
    pub(super) fn end<R>(
        self,
        result: Result<Result<R, FusedError>, Caught>,
        reports: &mut Reports,
        end_panic: &mut Option<Caught>,
    ) -> Result<R, Failure> {
        let ended = match (result, self.end_stage()) {
            (Ok(Err(error)), _) => Err(error.into()),
            // The closure may panic because of an earlier failure in it. A block fails its pass, then panics.
            (_, Some(failure)) => Err(failure),
            (Err(panic), None) => Err(Failure::Panic(panic)),
            (Ok(Ok(output)), None) => Ok(output),
        };
        let commits = ended.is_ok();
        let Self {
            attached_modules,
            rank_passes,
            ..
        } = self;
        let observers = rank_passes[0].pass.observers.clone();
        let mut parameters = rank_passes[0].local_params.end(commits);
        for rank in &rank_passes[1..] {
            // Every rank has the same parameters in the same order.
            let both = parameters.iter_mut().zip(rank.local_params.end(commits));
            both.for_each(|((_, greatest), (_, report))| *greatest = report.max(*greatest));
        }
        for (attached, RankPass { pass, .. }) in attached_modules.iter_mut().zip(&rank_passes) {
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
        if let Some(panic) = observers.and_then(emit) {
            match commits {
                true => _ = end_panic.get_or_insert(panic),
                false => log::warn!(
                    "an observer panicked at the end of a failed step: {}",
                    panic.message()
                ),
            }
        }
        if commits {
            reports.report(&attached_modules[0], parameters);
        }
        ended
    }

    /// Ends the stage of the pass on all ranks. Returns the failure; of several ranks, that of the first to fail.
    fn end_stage(&self) -> Option<Failure> {
        let first = self.group.and_then(|group| group.flow.failed());
        let mut failures = Vec::new();
        for (rank, RankPass { pass, .. }) in self.rank_passes.iter().enumerate() {
            // A clone of the model or another thread may still hold the pass, and must see that it is over: then they read no
            // parameter and don't take the lock of the generators.
            if let Stage::Failed(Failed { by: Some(by), .. }) =
                std::mem::replace(&mut *pass.stage.lock(), Stage::Over)
            {
                failures.push((rank, pass.numbers.repeats, by));
            }
        }
        let failures = failures.into_iter();
        let (rank, repeated, failure) =
            failures.min_by_key(|(rank, ..)| (Some(*rank) != first, *rank))?;
        Some(match self.group {
            None => failure,
            Some(group) => failure.on_rank(rank, group.device(rank), repeated).into(),
        })
    }
}
