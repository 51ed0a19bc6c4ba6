use std::collections::{HashMap, HashSet};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::{Bytes, DType, Device, Tensor};

use super::named_param::step_one;
use super::offloaded::{Eviction, OffloadedStates};
use super::removed::Removed;
use super::states::{holds_codes, joined, split, with_states, written};
use crate::caught::Caught;
use crate::device::{host, is_remote};
use crate::optim::call::{Asked, Call};
use crate::optim::formats_may_refuse;
use crate::optimizer_record::{
    RecordedState, compact_records, load_in_own_memory, records_are_compact, write,
};
use crate::parameters::{AnyTensor, MAX_RANK, with_rank};

/// Steps one parameter with Burn's own [`ModuleOptimizer`], so every optimizer, parameter group,
/// learning rate, clipping and record of Burn's works unchanged.
///
/// The optimizer is not cloned while training: Burn updates a state in place only while it has one owner.
pub(crate) struct Update {
    optimizer: ModuleOptimizer,
    /// The optimizer without states.
    fresh: ModuleOptimizer,
    pub(crate) learning_rate: ModuleLearningRate,
    /// The offloaded states, if states are offloaded.
    pub(crate) offloaded: Option<OffloadedStates>,
    /// The parameters that were removed from the model.
    removed: HashSet<ParamId>,
    /// The number of groups for removed parameters that the optimizer has.
    removed_groups: usize,
}

/// Maximum number of groups for removed parameters. With more, the states go through a record, which drops the groups.
/// Each group costs a comparison per step, and a record costs a copy of all states.
const MAX_REMOVED_GROUPS: usize = 32;

impl Update {
    /// Creates the update. States of parameters with at least `offload_from` elements are kept on the host.
    pub(crate) fn new(optimizer: ModuleOptimizer, offload_from: Option<usize>) -> Self {
        let fresh = optimizer.clone().load_record(OptimizerRecord::default());
        let mut update = Self {
            optimizer: fresh.clone(),
            fresh,
            learning_rate: 0.0.into(),
            offloaded: offload_from.map(|from| OffloadedStates::of(from, HashMap::new())),
            removed: HashSet::new(),
            removed_groups: 0,
        };
        update.replace(optimizer);
        update
    }

    /// Returns the optimizer without states.
    pub(crate) fn fresh(&self) -> ModuleOptimizer {
        self.fresh.clone()
    }

    /// Returns why the optimizer can't step a parameter of this path, rank and type on `device`. The check loads the
    /// parameter's state from an empty record. If formats may be unsupported, it also steps a single element in this
    /// process, where possible.
    pub(crate) fn unsupported(
        &self,
        device: &Device,
        id: ParamId,
        path: &str,
        rank: usize,
        dtype: DType,
        elements: usize,
    ) -> Option<String> {
        if rank > MAX_RANK {
            return Some(format!(
                "it has {rank} dimensions, and Burn's optimizers update tensors of up to {MAX_RANK}: freeze it, or keep it in another shape"
            ));
        }
        let nothing = write([RecordedState::none(id, path, rank)]);
        let nothing = nothing.expect("Burn writes what has no state");
        let load = || self.fresh().load_record(joined([nothing]));
        let (loaded, call) = Call::default().make(load);
        loaded.unwrap_or_else(|panic| panic.resume());
        let formats_may_refuse = call.may_have_formats && formats_may_refuse(dtype, elements);
        // Only a remote device may lack what an optimizer needs.
        if call.refusal.is_some() || !is_remote(device) && !formats_may_refuse {
            return call.refusal;
        }
        let host = host(device);
        let one =
            || with_rank!(rank, D => AnyTensor::from(Tensor::<D>::ones([1; D], (&host, dtype))));
        let call = Call {
            asked_for: Some(Asked {
                device: device.clone(),
                elements,
            }),
            ..Call::default()
        };
        // A panic on such a small parameter does not mean that the optimizer lacks support.
        let step = || step_one(&mut self.fresh(), 0.0.into(), path, id, one(), one());
        call.make(step).1.refusal
    }

    /// Replaces the optimizer by `optimizer`, whose states belong to a new model.
    pub(crate) fn start_over(&mut self, optimizer: ModuleOptimizer) {
        self.removed.clear();
        self.removed_groups = 0;
        self.replace(optimizer);
    }

    /// Drops the states of parameters that were removed from the model. Returns `true` if the other states went through
    /// a record. This happens if `is_here` returns `true` for one of the removed parameters, which then starts with a
    /// fresh state, or if there are many groups for removed parameters and `keeps_states` says that a record loses
    /// nothing.
    pub(crate) fn remove(
        &mut self,
        parameters: Vec<ParamId>,
        is_here: impl Fn(ParamId) -> bool,
        keeps_states: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(offloaded) = &self.offloaded {
            offloaded.forget(&parameters);
        }
        if !parameters.is_empty() {
            self.removed.extend(&parameters);
            // Burn drops only the states of a group for which another optimizer is added.
            let group = ParamGroup::from_ids(parameters);
            self.removed_groups += 1;
            self.change(|optimizer| optimizer.with_group(group, Removed, None));
        }
        let are_back = self.removed.iter().any(|id| is_here(*id));
        let through_a_record =
            are_back || self.removed_groups > MAX_REMOVED_GROUPS && keeps_states();
        if through_a_record {
            self.removed.clear();
            self.removed_groups = 0;
            let record = compact_records(|| self.optimizer.to_record());
            self.optimizer = self.fresh().load_record(record);
        }
        through_a_record
    }

    /// Returns the number of groups for removed parameters.
    #[cfg(all(test, feature = "flex"))]
    pub(crate) fn removed_groups(&self) -> usize {
        self.removed_groups
    }

    /// Returns the optimizer with all states, which are shared.
    pub(crate) fn optimizer(&self) -> ModuleOptimizer {
        if self.has_no_offloaded_state() {
            return self.optimizer.clone();
        }
        // Only a record can merge the states of several optimizers.
        load_in_own_memory(&self.optimizer, self.to_record())
    }

    /// Replaces the optimizer, and returns the previous one with all states.
    pub(crate) fn replace(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        if !self.has_no_offloaded_state() {
            self.optimizer = self.optimizer();
        }
        let before = std::mem::replace(&mut self.optimizer, optimizer);
        if let Some(offloaded) = &mut self.offloaded {
            let record = compact_records(|| self.optimizer.to_record());
            let (states, others) = split(record);
            *offloaded = OffloadedStates::of(offloaded.from, states);
            self.optimizer = with_states(&self.optimizer, [others]);
        }
        before
    }

    /// Replaces the optimizer, without its offloaded states, by the result of `change`, which is its only owner.
    pub(crate) fn change(&mut self, change: impl FnOnce(ModuleOptimizer) -> ModuleOptimizer) {
        let optimizer = std::mem::replace(&mut self.optimizer, SgdConfig::new().init());
        self.optimizer = change(optimizer);
    }

    pub(crate) fn to_record(&self) -> OptimizerRecord {
        let record = self.optimizer.to_record();
        if self.has_no_offloaded_state() {
            return record;
        }
        let offloaded = self.offloaded.iter().flat_map(OffloadedStates::records);
        let offloaded = offloaded.map(|state| self.asked_for(state));
        joined([written(record)].into_iter().chain(offloaded))
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

    /// Returns the record of an offloaded state in the requested format: it is stored quantized.
    fn asked_for(&self, state: Bytes) -> Bytes {
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

    /// Steps `value` with `gradient`; neither has autodiff. Before the last micro-batch, the gradient is added to
    /// the optimizer state, if the optimizer supports that.
    ///
    /// The step is in place if the optimizer supports that and the only other owner of `value` is the handle in the
    /// call, which is then dropped. An optimizer that panics drops its state.
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
            let mut own = offloaded.take(id, &value.device(), all);
            let stepped = step_one(&mut own, learning_rate, path, id, value, gradient);
            eviction = Some(offloaded.put(id, own));
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
    /// The eviction of the state, if it is offloaded.
    pub(crate) eviction: Option<Eviction>,
    /// The panic of the optimizer.
    pub(crate) result: Result<(), Caught>,
}
