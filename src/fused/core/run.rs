//! One pass of all ranks, from its beginning to its end.

use std::collections::HashSet;
use std::sync::Arc;

use backburn_base::caught::{Caught, catch, catch_message};
use backburn_memory::Category;
use burn::module::{Module, ParamId};

use super::rank_pass::RankPass;
use super::ranks::Ranks;
use crate::device::{AsyncErrors, check_connected};
use crate::error::FusedError;
use crate::fused::StepReport;
use crate::pass::{ClosureKind, FailedIn, PassGuard, PassSettings};
use crate::pass::{Observers, StepEvent};
use crate::policy::GradientUse;
use crate::replica::Group;
use crate::weights::{AttachedModule, MasterParam, ParameterReport};

impl<M: Module> Ranks<M> {
    /// Begins a pass, which then holds the lock in its `settings`; `closures` has the kind of closure of each rank.
    pub(super) fn begin(
        &mut self,
        settings: PassSettings,
        closures: &[ClosureKind],
    ) -> RunningPass<'_, M> {
        let begin = |(attached, closure): (&AttachedModule<M>, &ClosureKind)| {
            let transfers = attached.context.transfers.as_ref();
            let transfers = transfers.filter(|_| settings.checkpointing.offload_inputs);
            let prefetcher = attached.has_block_copies.then(|| attached.prefetcher());
            let session = &attached.session;
            let guard = session.begin(&settings, *closure, prefetcher, transfers.cloned());
            let rank = RankPass {
                pass: guard.pass.clone(),
                local_params: attached.local_params.clone(),
                context: attached.context.clone(),
                reports_errors_late: self.reports_errors_late,
            };
            (guard, rank)
        };
        let begun = self.attached_modules.iter().zip(closures).map(begin);
        let (guards, ranks) = begun.unzip();
        let running_pass = RunningPass {
            ranks,
            attached_modules: &mut self.attached_modules,
            guards,
            group: self.group.as_deref(),
        };
        if let Some(observers) = &running_pass.ranks[0].pass.observers {
            let masters = running_pass.attached_modules[0].local_params.masters();
            for value in masters.filter_map(MasterParam::find) {
                observers.emit(StepEvent::Tensor(Category::Parameter, &value));
            }
            observers.emit(StepEvent::Forward);
        }
        running_pass
    }

    /// Returns an error if a device is lost.
    pub(in crate::fused) fn check_connected(&self) -> Result<(), FusedError> {
        check_connected(|| self.devices.clone())
    }

    /// Returns an error if a device has failed to compute a value.
    pub(super) fn check_async_errors(&self) -> Result<(), FusedError> {
        let mut errors = AsyncErrors::new();
        let local_params = self
            .attached_modules
            .iter()
            .flat_map(|attached| attached.local_params.iter());
        local_params.for_each(|local_param| local_param.add_to_check(&mut errors));
        errors.finish()
    }
}

/// A pass in flight. Weights and optimizer states are final as soon as their gradient is applied, also if the pass
/// fails later. Accumulated sums and running statistics end together on all ranks: a commit keeps them, and a drop
/// rolls them back, except for sums that were overwritten, which are lost.
pub(super) struct RunningPass<'a, M: Module> {
    pub(super) attached_modules: &'a mut [AttachedModule<M>],
    pub(super) ranks: Vec<RankPass>,
    /// The guard of the pass of each rank.
    guards: Vec<PassGuard>,
    group: Option<&'a Group>,
}

impl<M: Module> RunningPass<'_, M> {
    /// Returns the failure of the pass, if there is one; of several ranks, that of the first to fail.
    pub(super) fn check(&self) -> Result<(), FusedError> {
        let failures = self.ranks.iter().enumerate();
        let failures = failures.filter_map(|(rank, RankPass { pass, .. })| {
            Some((rank, pass.drawing.numbers.repeats, pass.take_failure()?))
        });
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

    /// Applies the gradients of the ordinary leaves of every rank, in the pass of the rank.
    pub(super) fn finish(&mut self, gradient_use: GradientUse) -> Result<(), FusedError> {
        if gradient_use.steps() {
            let attached_modules = self.attached_modules.iter_mut();
            attached_modules.for_each(AttachedModule::drop_leaf_values);
        }
        for RankPass {
            pass,
            local_params,
            context,
            ..
        } in &self.ranks
        {
            let gradients = std::mem::take(&mut *pass.leaf_gradients.lock());
            pass.guarded(FailedIn::Update, || {
                local_params.report_retained(pass, gradients)
            });
            if let Some(transfers) = &context.transfers {
                transfers.wait();
            }
        }
        self.check()
    }

    /// Commits the pass. Returns a report per parameter, over all ranks, in module order, and the panic of an observer
    /// that received the end of the pass.
    pub(super) fn commit(mut self) -> (Vec<(ParamId, ParameterReport)>, Option<Caught>) {
        let reports = self.end(true);
        for (attached, guard) in self.attached_modules.iter_mut().zip(&mut self.guards) {
            if attached.has_block_copies {
                attached.update_block_order(&guard.pass.blocks.block_order.lock());
            }
            guard.has_succeeded = true;
        }
        let observers = self.ranks[0].pass.observers.clone();
        drop((
            std::mem::take(&mut self.guards),
            std::mem::take(&mut self.ranks),
        ));
        // Nothing is left to roll back.
        std::mem::forget(self);
        let emit = |observers: Arc<Observers>| catch(|| observers.emit(StepEvent::End)).err();
        (reports, observers.and_then(emit))
    }

    /// Ends the pass on all ranks, and restores the values of the leaves.
    fn end(&mut self, committed: bool) -> Vec<(ParamId, ParameterReport)> {
        let ranks = self.ranks.iter();
        let mut ranks = ranks.map(|rank| rank.local_params.end(committed));
        let mut reports = ranks.next().unwrap_or_default();
        for rank in ranks {
            // Every rank has the same parameters in the same order.
            let both = reports.iter_mut().zip(rank);
            both.for_each(|((_, greatest), (_, report))| *greatest = report.max(*greatest));
        }
        for attached in self.attached_modules.iter_mut() {
            if !attached.local_params.leaves.is_empty() {
                attached.restore_leaf_values();
            }
        }
        reports
    }
}

impl<M: Module> Drop for RunningPass<'_, M> {
    fn drop(&mut self) {
        self.end(false);
        let Some(observers) = self.ranks[0].pass.observers.clone() else {
            return;
        };
        // The step may have panicked, and a second panic aborts the process.
        if let Err(panic) = catch_message(|| observers.emit(StepEvent::End)) {
            log::warn!("an observer panicked at the end of a failed step: {panic}");
        }
    }
}

/// Per-pass statistics for `last_step` and the log.
#[derive(Clone, Debug, Default)]
pub(in crate::fused) struct Reports {
    /// The report of the last pass.
    pub(super) last: StepReport,
    /// `true` if it has a gradient of any parameter.
    pub(in crate::fused) has_gradient: bool,
    /// The parameters that the log has reported as having no gradient.
    reported: HashSet<ParamId>,
}

impl Reports {
    /// Records the report of a pass, and logs parameters without a gradient.
    pub(super) fn report<M: Module>(
        &mut self,
        attached: &AttachedModule<M>,
        ended: Vec<(ParamId, ParameterReport)>,
    ) {
        let mut reports = ended.iter().map(|(_, report)| report);
        self.has_gradient = reports.any(|report| *report != ParameterReport::NoGradient);
        let mut report = StepReport {
            copied: Some(0),
            ..StepReport::default()
        };
        for (id, of) in ended {
            match of {
                ParameterReport::NoGradient => {
                    report.without_gradient += 1;
                    if self.reported.insert(id) {
                        let path = attached.path(id);
                        log::warn!("parameter `{path}` received no gradient in this pass");
                    }
                }
                ParameterReport::Received => {}
                ParameterReport::Vetoed => report.vetoed += 1,
                ParameterReport::Updated { copied } => {
                    report.updated += 1;
                    let sum = report.copied.zip(copied);
                    report.copied = sum.map(|(sum, copied)| sum + usize::from(copied));
                }
            }
        }
        self.last = report;
    }
}
