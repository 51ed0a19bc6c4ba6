//! The optimizer of a training, which all ranks share. It steps one parameter at a time.

mod extra_state;
mod extra_state_ids;
mod offloaded;
mod query;
mod removed;
mod states;
mod step_one;

use std::collections::HashMap;

use backburn_base::AnyTensor;
use backburn_base::caught::Caught;
use backburn_optim::call::Call;
use backburn_optim::optimizer_record::{compact_records, load_in_own_memory, records_are_compact};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::{Bytes, Device};

pub(crate) use extra_state::ExtraState;
pub(crate) use extra_state_ids::{EXTRA_STATE_ID, average_id, is_average};
pub(crate) use offloaded::Eviction;
pub(crate) use query::{orthogonalizes, updates_are_equal};
pub(crate) use step_one::{first_refused, step_one};

use offloaded::OffloadedStates;
use removed::{RemovedOptimizer, RemovedParameters};
use states::{holds_codes, joined, split, with_states, written};

/// The optimizer of a training. It steps one parameter at a time with Burn's [`ModuleOptimizer`]. It is not cloned while training:
/// Burn updates a state in place only while it has one owner.
pub(crate) struct SharedOptimizer {
    optimizer: ModuleOptimizer,
    /// The optimizer without states.
    fresh: ModuleOptimizer,
    pub(crate) learning_rate: ModuleLearningRate,
    /// The offloaded states, if states are offloaded.
    pub(crate) offloaded: Option<OffloadedStates>,
    removed: RemovedParameters,
}

impl SharedOptimizer {
    /// Creates the shared optimizer. States of parameters with at least `min_offloaded` elements are offloaded
    /// to the host.
    pub(crate) fn new(optimizer: ModuleOptimizer, min_offloaded: Option<usize>) -> Self {
        let fresh = optimizer.clone().load_record(OptimizerRecord::default());
        let mut shared = Self {
            optimizer: fresh.clone(),
            fresh,
            learning_rate: 0.0.into(),
            offloaded: min_offloaded.map(|min| OffloadedStates::of(min, HashMap::new())),
            removed: RemovedParameters::default(),
        };
        shared.replace(optimizer);
        shared
    }

    /// Returns the optimizer without states.
    pub(crate) fn fresh(&self) -> ModuleOptimizer {
        self.fresh.clone()
    }

    /// Replaces the optimizer by `optimizer`, whose states belong to a new model.
    pub(crate) fn start_over(&mut self, optimizer: ModuleOptimizer) {
        self.replace(optimizer);
        self.removed = RemovedParameters::default();
    }

    /// Returns the optimizer without states, and the parameters that were removed from it, for
    /// [`restore_removed`](Self::restore_removed) in another training.
    pub(crate) fn fresh_and_removed(&self) -> (ModuleOptimizer, RemovedParameters) {
        (self.fresh(), self.removed.clone())
    }

    /// Restores the removed parameters of an earlier training of the same model.
    pub(crate) fn restore_removed(
        &mut self,
        (fresh, removed): (ModuleOptimizer, RemovedParameters),
    ) {
        self.fresh = fresh;
        self.removed = removed;
    }

    /// Drops the states of removed parameters. Returns `true` if the others went through a record: if a removed parameter `is_here`
    /// again and starts fresh, or if there are many groups and a record `keeps_states` as they are.
    pub(crate) fn remove(
        &mut self,
        parameters: Vec<ParamId>,
        is_here: impl Fn(ParamId) -> bool,
        keeps_states: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(offloaded) = &mut self.offloaded {
            offloaded.forget(&parameters);
        }
        if !parameters.is_empty() {
            self.removed.add(&parameters);
            // Burn drops only the states of a group for which another optimizer is added.
            let group = ParamGroup::from_ids(parameters);
            let optimizer = self.optimizer.clone();
            self.optimizer = optimizer.with_group(group, RemovedOptimizer, None);
        }
        let are_back = self.removed.removed_id_in_model(is_here).is_some();
        let through_a_record = are_back || self.removed.has_many_groups() && keeps_states();
        if through_a_record {
            self.drop_removed_groups();
        }
        through_a_record
    }

    /// Returns a removed parameter for which `is_here` returns `true`.
    pub(crate) fn removed_id_in_model(&self, is_here: impl Fn(ParamId) -> bool) -> Option<ParamId> {
        self.removed.removed_id_in_model(is_here)
    }

    /// Returns `true` if the optimizer can step these parameters after its states went through a record. Each parameter has its
    /// path, and zeros of its shape and type.
    pub(crate) fn survives_record<'a>(
        &self,
        parameters: impl Iterator<Item = (ParamId, &'a str, AnyTensor)>,
    ) -> bool {
        let mut parameters = parameters.peekable();
        if parameters.peek().is_none() {
            return true;
        }
        let record = compact_records(|| self.optimizer.to_record());
        let load = || self.fresh().load_record(record);
        let loaded = Call::default().make(load).0;
        loaded.is_ok_and(|loaded| first_refused(&loaded, parameters).is_none())
    }

    /// Drops the groups for removed parameters. The states go through a record.
    pub(crate) fn drop_removed_groups(&mut self) {
        if self.removed.groups == 0 {
            return;
        }
        let record = compact_records(|| self.optimizer.to_record());
        self.optimizer = self.fresh().load_record(record);
        self.removed = RemovedParameters::default();
    }

    /// Returns the number of groups for removed parameters.
    #[cfg(all(test, feature = "flex"))]
    pub(crate) fn removed_groups(&self) -> usize {
        self.removed.groups
    }

    /// Returns the optimizer with all states. They share the tensors of this one.
    pub(crate) fn with_all_states(&self) -> ModuleOptimizer {
        if self.has_no_offloaded_state() {
            return self.optimizer.clone();
        }
        // Only a record can merge the states of several optimizers.
        load_in_own_memory(&self.optimizer, compact_records(|| self.to_record()))
    }

    /// Replaces the optimizer and its states.
    pub(crate) fn replace(&mut self, optimizer: ModuleOptimizer) {
        self.optimizer = match &mut self.offloaded {
            None => optimizer,
            // Saving and loading states runs the user's code, so it precedes every change.
            Some(offloaded) => {
                let (states, others) = split(compact_records(|| optimizer.to_record()));
                let others = with_states(&optimizer, [others]);
                *offloaded = OffloadedStates::of(offloaded.min_elements, states);
                others
            }
        };
    }

    /// Returns the optimizer, without its offloaded states.
    pub(crate) fn optimizer_mut(&mut self) -> &mut ModuleOptimizer {
        &mut self.optimizer
    }

    pub(crate) fn to_record(&self) -> OptimizerRecord {
        match self.has_no_offloaded_state() {
            true => self.optimizer.to_record(),
            false => joined(self.records(self.offloaded_records())),
        }
    }

    /// Returns the parameters whose states are offloaded.
    pub(crate) fn offloaded_ids(&self) -> Vec<ParamId> {
        let offloaded = self.offloaded.as_ref();
        offloaded.map_or(Vec::new(), OffloadedStates::ids)
    }

    /// Returns the serialized states that are offloaded, in the format in which they are stored.
    pub(crate) fn offloaded_records(&self) -> Vec<Bytes> {
        let offloaded = self.offloaded.as_ref();
        offloaded.map_or(Vec::new(), OffloadedStates::records)
    }

    /// Returns all serialized states, with those that are `offloaded` in the format of this thread's records.
    pub(crate) fn records(&self, offloaded: Vec<Bytes>) -> Vec<Bytes> {
        let offloaded = offloaded.into_iter();
        let offloaded = offloaded.map(|state| self.in_requested_format(state));
        let others = written(self.optimizer.to_record());
        [others].into_iter().chain(offloaded).collect()
    }

    fn has_no_offloaded_state(&self) -> bool {
        self.offloaded
            .as_ref()
            .is_none_or(OffloadedStates::is_empty)
    }

    /// Returns the stored state of one parameter.
    pub(crate) fn record_of(&self, id: ParamId) -> OptimizerRecord {
        let offloaded = self.offloaded.as_ref();
        if let Some(state) = offloaded.and_then(|offloaded| offloaded.record(id)) {
            return joined([state]);
        }
        // Burn drops the states of a group for which another optimizer is added.
        let others = ParamGroup::all().exclude(ParamGroup::from_ids(vec![id]));
        let nothing = SgdConfig::new().build();
        let alone = self.optimizer.clone().with_group(others, nothing, None);
        compact_records(|| alone.to_record())
    }

    /// Returns the record of an offloaded state in the format of this thread's records. It is stored in compact format.
    fn in_requested_format(&self, state: Bytes) -> Bytes {
        match holds_codes(&state) && !records_are_compact() {
            true => written(with_states(&self.optimizer, [state]).to_record()),
            false => state,
        }
    }

    /// Prepares the step of a parameter with `elements` elements. Returns the prefetch of the state that came next in
    /// the previous pass, if that has at most `limit` bytes.
    pub(crate) fn prefetch_next(
        &mut self,
        id: ParamId,
        elements: usize,
        limit: usize,
        device: &Device,
    ) -> Option<impl FnOnce() + Send + use<>> {
        let offloaded = self.offloaded.as_mut();
        let offloaded = offloaded.filter(|offloaded| offloaded.has(id, elements))?;
        offloaded.prefetch_next(id, limit, device, &self.optimizer)
    }

    /// Steps `value` with `gradient`, both without autodiff, in place if nothing else holds `value`. Before the last micro-batch it adds
    /// the gradient to the optimizer state, if supported. An optimizer that panics loses the state, unless it is offloaded.
    pub(crate) fn step(
        &mut self,
        path: &str,
        id: ParamId,
        value: AnyTensor,
        gradient: AnyTensor,
        is_last_micro_batch: bool,
    ) -> Stepped {
        let elements = value.shape().num_elements();
        // A second handle keeps the value until the update has succeeded.
        let call = Call {
            more_micro_batches_follow: !is_last_micro_batch,
            parameter: Some(value.clone()),
            ..Call::default()
        };
        let offloaded = self.offloaded.as_mut();
        let offloaded = offloaded.filter(|offloaded| offloaded.has(id, elements));
        let is_offloaded = offloaded.is_some();
        let mut eviction = None;
        let step = || {
            let learning_rate = self.learning_rate.clone();
            let all = &mut self.optimizer;
            let Some(offloaded) = offloaded else {
                return step_one(all, learning_rate, path, id, value, gradient);
            };
            let mut own = offloaded.fetch(id, &value.device(), all);
            let stepped = step_one(&mut own, learning_rate, path, id, value, gradient);
            eviction = Some(offloaded.store(id, own));
            stepped
        };
        let (stepped, call) = call.make(step);
        // An offloaded state is unchanged.
        if stepped.is_err() && !is_offloaded {
            log::error!(
                "the optimizer panicked in the update of parameter `{path}`: the state of this parameter is lost and starts again from zero"
            );
        }
        let (value, result) = match stepped {
            Ok(value) => {
                let refused = call.refusal.map(Caught::saying);
                (Some(value), refused.map_or(Ok(()), Err))
            }
            Err(panic) => (call.parameter, Err(panic)),
        };
        Stepped {
            value,
            has_written: call.has_written,
            eviction,
            result,
        }
    }
}

/// The result of the update of a parameter.
pub(crate) struct Stepped {
    /// The value; from before or after the update if the optimizer panicked. `None` only if it panicked while writing
    /// in place.
    pub(crate) value: Option<AnyTensor>,
    /// `true` if a value after a panic is known to be the updated one.
    pub(crate) has_written: bool,
    /// The eviction of the state, if it is offloaded.
    pub(crate) eviction: Option<Eviction>,
    /// The panic of the optimizer.
    pub(crate) result: Result<(), Caught>,
}
