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
    /// Returns the optimizer without states, for any parameters.
    fresh: ModuleOptimizer,
    pub(crate) learning_rate: ModuleLearningRate,
    /// If states wait on the host.
    pub(crate) offloaded: Option<OffloadedStates>,
    /// The parameters that have left the model.
    removed: HashSet<ParamId>,
    /// The number of groups for removed parameters that the optimizer has.
    gone_groups: usize,
}

/// Groups for removed parameters that an optimizer may have before its states go through a record to remove them: each costs
/// every step a comparison, and a record costs a copy of all states.
const MAX_GONE_GROUPS: usize = 32;

impl Update {
    /// Steps with `optimizer`. The states of parameters with at least `offload_from` elements are kept on the host.
    pub(crate) fn new(optimizer: ModuleOptimizer, offload_from: Option<usize>) -> Self {
        let fresh = optimizer.clone().load_record(OptimizerRecord::default());
        let mut update = Self {
            optimizer: fresh.clone(),
            fresh,
            learning_rate: 0.0.into(),
            offloaded: offload_from.map(|from| OffloadedStates::of(from, HashMap::new())),
            removed: HashSet::new(),
            gone_groups: 0,
        };
        update.replace(optimizer);
        update
    }

    /// The optimizer without states, for whatever parameters.
    pub(crate) fn fresh(&self) -> ModuleOptimizer {
        self.fresh.clone()
    }

    /// Returns why the optimizer can't step a parameter of this path, rank and type on `device`. Burn lets the optimizer of a
    /// parameter read its state when it loads a record; this one has none. For the formats that it may keep things in, the
    /// optimizer steps a single element in this process, where that may be.
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
                "Burn's optimizers step tensors of up to {MAX_RANK} dimensions, and it has {rank}: freeze it, or keep it in another shape"
            ));
        }
        let nothing = write([RecordedState::none(id, path, rank)]);
        let nothing = nothing.expect("Burn writes what has no state");
        let load = || self.fresh().load_record(joined([nothing]));
        let (loaded, call) = Call::default().make(load);
        loaded.unwrap_or_else(|panic| panic.resume());
        let formats_may_refuse = call.may_have_formats && formats_may_refuse(dtype, elements);
        // Only devices of servers lack what an optimizer needs.
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
        // An optimizer that panics for such a small parameter has refused nothing.
        let step = || step_one(&mut self.fresh(), 0.0.into(), path, id, one(), one());
        call.make(step).1.refusal
    }

    /// Goes on with `optimizer`, which has states for the parameters of a model that has just come.
    pub(crate) fn start_over(&mut self, optimizer: ModuleOptimizer) {
        self.removed.clear();
        self.gone_groups = 0;
        self.replace(optimizer);
    }

    /// Drops the states of parameters that were removed from the model. Returns `true` if the others went through a record: `is_here` says
    /// that some are in the model again, which start with fresh states, or there are many groups for removed parameters and
    /// `keeps_states` says that a record loses nothing.
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
            // Burn drops the states of a group that another optimizer is added for, and no others.
            let group = ParamGroup::from_ids(parameters);
            self.gone_groups += 1;
            self.change(|optimizer| optimizer.with_group(group, Removed, None));
        }
        let are_back = self.removed.iter().any(|id| is_here(*id));
        let through_a_record = are_back || self.gone_groups > MAX_GONE_GROUPS && keeps_states();
        if through_a_record {
            self.removed.clear();
            self.gone_groups = 0;
            let record = compact_records(|| self.optimizer.to_record());
            self.optimizer = self.fresh().load_record(record);
        }
        through_a_record
    }

    /// The number of groups for removed parameters.
    #[cfg(all(test, feature = "flex"))]
    pub(crate) fn gone_groups(&self) -> usize {
        self.gone_groups
    }

    /// The optimizer with all states, which it shares.
    pub(crate) fn optimizer(&self) -> ModuleOptimizer {
        if self.has_no_offloaded_state() {
            return self.optimizer.clone();
        }
        // Only a record brings the states of several optimizers together.
        load_in_own_memory(&self.optimizer, self.to_record())
    }

    /// Puts another optimizer in, and returns the one before with all states.
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

    /// Replaces the optimizer, without the states that it has not itself, by what `change` makes of it, its only
    /// owner.
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

    /// The state of one parameter, as it is kept.
    pub(crate) fn record_of(&self, id: ParamId) -> OptimizerRecord {
        let offloaded = self.offloaded.as_ref();
        if let Some(state) = offloaded.and_then(|offloaded| offloaded.record(id)) {
            return joined([state]);
        }
        // Burn's optimizer drops the states of a group that another optimizer is added for.
        let others = ParamGroup::all().exclude(ParamGroup::from_ids(vec![id]));
        let nothing = SgdConfig::new().build();
        let alone = self.optimizer.clone().with_group(others, nothing, None);
        compact_records(|| alone.to_record())
    }

    /// The record of a state that waits, in the form that was asked for: it waits as it is kept, in codes.
    fn asked_for(&self, state: Bytes) -> Bytes {
        match holds_codes(&state) && !records_are_compact() {
            true => written(with_states(&self.optimizer, [state]).to_record()),
            false => state,
        }
    }

    /// A parameter of so many elements is about to be stepped. Returns what brings the state of the one that came next in the
    /// pass before, if that has no more than so many bytes.
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

    /// Steps `value` with `gradient`; neither has autodiff. If more gradients of its group follow, the
    /// state of the optimizer takes it, if it can.
    ///
    /// The step happens in place where the optimizer says that it does, and `value` has no other owner but
    /// the one in the call, which is given up then. An optimizer that panics takes the state that it was given along.
    pub(crate) fn step(
        &mut self,
        path: &str,
        id: ParamId,
        value: AnyTensor,
        gradient: AnyTensor,
        more_to_come: bool,
    ) -> Stepped {
        let elements = value.shape().num_elements();
        // Until the update has succeeded there is a handle to the value.
        let call = Call {
            more_micro_batches_follow: more_to_come,
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
        // A state that waits is that of before.
        if stepped.is_err() && !is_offloaded {
            log::error!(
                "the optimizer panicked in the update of parameter `{path}`: its state for it is lost and starts anew"
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

/// Outcome of the update of a parameter.
pub(crate) struct Stepped {
    /// The value, of before or after the update if the optimizer panicked. There is none only if it panics
    /// while it writes in place.
    pub(crate) value: Option<AnyTensor>,
    /// Eviction of the state, if it is offloaded.
    pub(crate) eviction: Option<Eviction>,
    /// The panic of the optimizer.
    pub(crate) result: Result<(), Caught>,
}
