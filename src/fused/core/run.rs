//! One pass of all ranks, from its beginning to its end.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::rank_pass::RankPass;
use super::ranks::Ranks;
use crate::device::{AsyncErrors, check_connected};
use crate::error::FusedError;
use crate::memory::Category;
use crate::observer::StepEvent;
use crate::pass::{Closure, FailedIn, Order, PassGuard};
use crate::policy::GradientUse;
use crate::replica::Group;
use crate::report::StepReport;
use crate::weights::{AttachedModule, MasterParam, ParameterReport};

impl<M: Module> Ranks<M> {
    /// Begins a pass; `closures` has the kind of closure of each rank.
    pub(super) fn begin(&mut self, order: &Order, closures: &[Closure]) -> PassTransaction<'_, M> {
        let running = self
            .attached_modules
            .iter()
            .zip(closures)
            .map(|(attached, closure)| {
                let transfers = attached.context.transfers.as_ref();
                let transfers = transfers.filter(|_| order.checkpointing.offload_inputs);
                let prefetcher = attached.fetches_blocks.then(|| attached.prefetcher());
                let session = &attached.session;
                session.begin(order, *closure, prefetcher, transfers.cloned())
            });
        let running: Vec<_> = running.collect();
        let ranks = self
            .attached_modules
            .iter()
            .zip(&running)
            .map(|(attached, running)| RankPass {
                pass: running.pass.clone(),
                local_params: attached.local_params.clone(),
                context: attached.context.clone(),
                devices: match &attached.context.member {
                    Some(member) => vec![member.device().clone()],
                    None => self.devices.clone(),
                },
                read_late: self.read_late,
                remote: self.remote,
            });
        let transaction = PassTransaction {
            ranks: ranks.collect(),
            attached_modules: &mut self.attached_modules,
            running,
            group: self.group.as_deref(),
        };
        if let Some(observers) = &transaction.ranks[0].pass.observers {
            let masters = transaction.attached_modules[0].local_params.masters();
            for value in masters.filter_map(MasterParam::find) {
                let category = Category::Parameter;
                observers.emit(StepEvent::Tensor {
                    category,
                    tensor: &value,
                });
            }
            observers.emit(StepEvent::Forward);
        }
        transaction
    }

    /// Refuses devices that are lost.
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

/// A pass in flight. It commits on all ranks or on none: a drop rolls back accumulated gradients, except sums that
/// were overwritten, which are lost. (Gradients in the optimizer state stay.)
pub(super) struct PassTransaction<'a, M: Module> {
    pub(super) attached_modules: &'a mut [AttachedModule<M>],
    pub(super) ranks: Vec<RankPass>,
    running: Vec<PassGuard>,
    group: Option<&'a Group>,
}

impl<M: Module> PassTransaction<'_, M> {
    /// Returns the failure of the pass, if there is one; of several ranks, that of the first to fail.
    pub(super) fn check(&self) -> Result<(), FusedError> {
        let failures = self
            .running
            .iter()
            .enumerate()
            .filter_map(|(rank, running)| {
                let failure = running.pass.take_failure()?;
                Some((rank, running.pass.twice.is_some(), failure))
            });
        let first = self.group.and_then(|group| group.flow.failed());
        let first = failures.min_by_key(|(rank, ..)| (Some(*rank) != first, *rank));
        match (first, self.group) {
            (None, _) => Ok(()),
            (Some((.., failure)), None) => failure.go_on(),
            (Some((rank, repeated, failure)), Some(group)) => {
                Err(failure.on_rank(rank, group.device(rank), repeated))
            }
        }
    }

    /// Applies the gradients of the ordinary leaves, of every rank in its pass.
    pub(super) fn apply_after_backward(
        &mut self,
        gradient_use: GradientUse,
        gradients: Vec<GradientsParams>,
    ) -> Result<(), FusedError> {
        if gradient_use.steps() {
            let attached_modules = self.attached_modules.iter_mut();
            attached_modules.for_each(AttachedModule::drop_leaf_values);
        }
        for ((attached, running), gradients) in self
            .attached_modules
            .iter()
            .zip(&self.running)
            .zip(gradients)
        {
            let pass = &running.pass;
            pass.guarded(FailedIn::Update, || {
                attached.local_params.deliver(pass, gradients)
            });
            if let Some(transfers) = attached.context.transfers.as_ref() {
                transfers.wait();
            }
        }
        self.check()
    }

    /// Commits the pass. Returns a report per parameter, over all ranks, in module order.
    pub(super) fn commit(mut self) -> Vec<(ParamId, ParameterReport)> {
        let reports = self.end(true);
        for (attached, running) in self.attached_modules.iter_mut().zip(&self.running) {
            if attached.fetches_blocks {
                attached.update_block_order(&running.pass.blocks.block_order.lock());
            }
        }
        let first = &self.running[0].pass;
        if first.closure != Closure::Nothing {
            first.blocks.observations.end_pass();
        }
        drop((
            std::mem::take(&mut self.running),
            std::mem::take(&mut self.ranks),
        ));
        // Nothing is left to roll back.
        std::mem::forget(self);
        reports
    }

    /// Ends the pass on all ranks, and restores the values of the leaves.
    fn end(&mut self, committed: bool) -> Vec<(ParamId, ParameterReport)> {
        let mut ranks = self
            .attached_modules
            .iter()
            .map(|attached| attached.local_params.end(committed));
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
        if let Some(observers) = &self.ranks[0].pass.observers {
            observers.emit(StepEvent::End);
        }
        reports
    }
}

impl<M: Module> Drop for PassTransaction<'_, M> {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Per-pass statistics for `last_step` and the log.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// The report of the last pass.
    pub(super) last: StepReport,
    /// The number of trained parameters.
    pub(super) parameters: usize,
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
        self.parameters = ended.len();
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
                        log::warn!("parameter `{path}` got no gradient in this pass");
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
