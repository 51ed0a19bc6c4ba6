//! The core of a training: a model on its ranks, its optimizer and its gradient policies. A [`Trainer`] calls the
//! closures.

mod change;
mod create;
mod rank_pass;
mod ranks;
mod records;
mod running_pass;
mod statistics;
mod step;
mod two_passes;

use std::fmt::{Display, Formatter};

use backburn_base::caught::{Caught, catch, catch_message};
use backburn_base::host;
use backburn_optim::AverageState;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use parking_lot::Mutex;

use crate::device::check_connected;
use crate::error::FusedError;
use crate::fused::policies::Policies;
#[cfg(feature = "train")]
use crate::fused::policies::StepSchedule;
use crate::fused::report::Reports;
use crate::fused::{ParameterList, StepReport};
use crate::policy::PolicyState;
use crate::shared_optimizer::{EXTRA_STATE_ID, ExtraState, SharedOptimizer, average_id};
use crate::tap::collect_graph_if_due;
use crate::weights::{Accumulated, MasterParam, Role, Value};
pub(crate) use change::ResumeError;
use change::record_keeps_states;
pub(in crate::fused) use rank_pass::RankPass;
pub(super) use ranks::Ranks;
pub(super) use running_pass::RunningPass;

/// A training of a model.
pub struct Core<M: Module> {
    pub(super) ranks: Ranks<M>,
    pub(super) policies: Policies,
    pub(super) reports: Reports,
    /// The panic of an observer at the end of a pass, until the step is complete. In a `Mutex`, because `Caught` is not `Sync`.
    end_panic: Mutex<Option<Caught>>,
}

/// A front end that owns a training [`Core`].
pub trait Trainer {
    /// The model.
    type Model: Module;

    /// Returns the core.
    fn core(&self) -> &Core<Self::Model>;

    /// Returns the core for changes.
    fn core_mut(&mut self) -> &mut Core<Self::Model>;
}

impl<M: Module> Core<M> {
    /// Returns an error if a device is lost: a read from it would wait forever.
    pub(crate) fn check_connected(&self) -> Result<(), FusedError> {
        check_connected(&self.ranks.devices)
    }

    /// Returns an ordinary Burn model with the current values.
    pub(crate) fn model(&self) -> M {
        self.with_graph_collected(self.ranks.export(|it| it.export(Value::Current)))
    }

    /// Collects the graph nodes of lifted parameters if there are many, and returns `made`.
    pub(in crate::fused) fn with_graph_collected<R>(&self, made: R) -> R {
        // Autodiff has one collector for all devices, and the host computes synchronously.
        collect_graph_if_due(&host(&self.ranks.device()));
        made
    }

    /// Returns an ordinary Burn model with the averages of its weights.
    pub(super) fn averaged(&self) -> M {
        self.with_graph_collected(self.ranks.export(|it| it.export(Value::Averaged)))
    }

    /// Returns the current model for inference, on its compute device.
    pub(super) fn valid(&self) -> M {
        self.with_graph_collected(self.ranks.valid(Value::Current))
    }

    /// Returns the model for validation: with the averages of its weights, if the config says so.
    #[cfg(feature = "train")]
    pub(crate) fn validated(&self) -> M {
        let averaging = self.policies.config.averaging;
        match averaging.is_some_and(|averaging| averaging.validate) {
            true => self.with_graph_collected(self.ranks.valid(Value::Averaged)),
            false => self.valid(),
        }
    }

    /// Returns the structure of the model, without the values of its trainable parameters.
    #[cfg(feature = "train")]
    pub(crate) fn skeleton(&self) -> M {
        self.ranks.attached().skeleton.clone()
    }

    /// Returns the report of the last pass, on all ranks together.
    pub(crate) fn last_step(&self) -> &StepReport {
        &self.reports.last
    }

    /// Returns the number of parameters with this role.
    pub(super) fn count(&self, role: Role) -> usize {
        self.ranks.attached().inventory.count(role)
    }

    pub(super) fn into_parts(self) -> (M, ModuleOptimizer) {
        let attached = self.ranks.attached();
        // Another training may use the removed parameters.
        if record_keeps_states(&attached.inventory, &attached.local_params) {
            attached.session.optimizer.lock().drop_removed_groups();
        }
        // Dropping `self` drops all other handles, so the result is the only owner.
        (self.model(), self.optimizer())
    }

    /// Returns the optimizer without averages, which belong to this training.
    fn optimizer(&self) -> ModuleOptimizer {
        let mut optimizer = self.ranks.optimizer.lock().with_all_states();
        self.drop_averages(&mut optimizer);
        optimizer
    }

    /// Drops the averages that `optimizer` has.
    fn drop_averages(&self, optimizer: &mut ModuleOptimizer) {
        // Frozen parameters keep the averages of the time when they were trained.
        let parameters = self.ranks.attached().inventory.ids_with_dims();
        let averages = parameters.map(|(id, dims)| (average_id(id), dims));
        AverageState::drop_in(optimizer, averages);
    }

    /// Returns `true` if a step runs its closure twice.
    #[cfg(feature = "train")]
    pub(crate) fn runs_twice(&self) -> bool {
        self.policies.schedule == StepSchedule::TwoPass
    }

    /// Returns the bytes of the weights that have another owner, which the next update copies.
    pub(crate) fn shared_bytes(&mut self) -> usize {
        let attached = &mut self.ranks.attached_modules[0];
        attached.drop_retained_values();
        let bytes = attached.local_params.shared_bytes();
        attached.restore_retained_values();
        bytes
    }

    /// Sets the blocks that keep their activations.
    pub(crate) fn keep_activations(&mut self, keep: Vec<bool>) {
        self.policies.config.gradient_checkpointing.keep_activations = keep;
    }

    /// Returns `true` if the devices read lazily: a transferred tensor may show later in-place writes.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.ranks.is_asynchronous
    }

    /// Returns the optimizer with all states. They share the tensors of this training.
    #[cfg(feature = "train")]
    pub(crate) fn optimizer_with_all_states(&self) -> ModuleOptimizer {
        self.ranks.optimizer.lock().with_all_states()
    }

    /// Replaces the optimizer and its state.
    #[cfg(feature = "train")]
    pub(crate) fn replace_optimizer(&mut self, optimizer: ModuleOptimizer) {
        self.change_optimizer(|shared| shared.replace(optimizer));
    }

    /// Applies `change`, which loads another optimizer state.
    pub(super) fn load_state(&mut self, change: impl FnOnce(&mut SharedOptimizer)) {
        let local_params = self.ranks.local_params().clone();
        let adaptive = self.policies.recorded_state().cloned();
        self.change_optimizer(|optimizer| {
            change(optimizer);
            // The current averages belong to other weights. A state that the record does not contain starts as new.
            local_params.masters().for_each(MasterParam::drop_average);
            adaptive.iter().for_each(PolicyState::reset);
        });
        if self.has_accumulated() {
            log::warn!(
                "the accumulated gradients are dropped, because they belong to the previous optimizer state"
            );
        }
        let masters = self.ranks.local_params().masters();
        // The new state does not contain the accumulated gradients.
        masters.for_each(|master| master.set_accumulated(Accumulated::Nothing));
    }

    /// Returns `true` if gradients were accumulated before the next step.
    pub(crate) fn has_accumulated(&self) -> bool {
        self.ranks.local_params().have_accumulated()
    }

    /// Drops the sums of gradients. Those in the optimizer state stay.
    pub(crate) fn drop_accumulated(&mut self) {
        let masters = self.ranks.local_params().masters();
        masters.for_each(|master| master.drop_sum());
    }

    /// Drops accumulated gradients if they are not finite: no step can apply them.
    pub(super) fn drop_accumulated_if_not_finite(&mut self) {
        let local_params = self.ranks.local_params();
        let are_finite =
            catch_message(|| local_params.masters().all(|master| master.sum_is_finite()));
        // If the device is lost, finiteness is unknown: keep the sums.
        if are_finite == Ok(false) {
            log::warn!("the accumulated gradients are dropped, because they are not finite");
            self.drop_accumulated();
        }
    }

    /// Changes the optimizer, its states or its extra state. Every change must use this function: it restores the extra
    /// state afterwards.
    pub(super) fn change_optimizer<R>(
        &mut self,
        change: impl FnOnce(&mut SharedOptimizer) -> R,
    ) -> R {
        let changed = catch(|| change(&mut self.ranks.optimizer.lock()));
        self.restore_extra_state();
        changed.unwrap_or_else(|panic| panic.resume())
    }

    /// Restores the policy state and the averages that the optimizer has loaded, if the config requires them. From now on
    /// the optimizer's records contain both.
    fn restore_extra_state(&mut self) {
        let device = self.ranks.device().inner();
        let mut optimizer = self.ranks.optimizer.lock();
        let optimizer = optimizer.optimizer_mut();
        if let Some(state) = self.policies.recorded_state() {
            state.take_over(optimizer, EXTRA_STATE_ID.into(), 1, &device);
        }
        if let Some(averaging) = &self.policies.config.averaging {
            let masters = || self.ranks.local_params().masters();
            masters().for_each(|master| master.keep_average(averaging, optimizer));
            // This computes, so it can panic: all averages are registered before.
            masters().for_each(MasterParam::start_average);
        } else {
            // Loaded averages that no update changes would be recorded as current ones.
            self.drop_averages(optimizer);
        }
    }

    /// Returns the parameters of the model, with what the optimizer keeps for each if `with_states`.
    pub(super) fn parameter_list(&self, with_states: bool) -> ParameterList {
        let attached = self.ranks.attached();
        let optimizer = self.ranks.optimizer.lock();
        let optimizer = with_states.then_some(&*optimizer);
        let trained = |id| {
            let entry = attached.inventory.get(id)?;
            entry
                .is_trained()
                .then(|| (entry.role, Some(entry.shape.clone())))
        };
        ParameterList::of(&attached.skeleton, trained, optimizer)
    }
}

impl<M: Module> Display for Core<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let list = self.parameter_list(f.alternate());
        let (released, retained) = (Role::Released, Role::Retained);
        write!(
            f,
            "FusedOptimizer: {} parameters stepped in the backward pass, {} after it; ",
            self.count(released),
            self.count(retained)
        )?;
        Display::fmt(&list, f)
    }
}
