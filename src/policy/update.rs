use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::{Bytes, Device, Tensor};

use super::backup::Backup;
use super::keeper::KEEPER_ID;
use super::states::{holds_codes, joined, split, written};
use crate::offload::Placement;
use crate::optim::{StepCall, compact_records, records_are_compact};

/// Steps one parameter with Burn's own [`ModuleOptimizer`], so every optimizer, parameter group,
/// learning rate, clipping and record of Burn's works unchanged.
///
/// The optimizer is not cloned while training, but for the states that are backed up: Burn updates a state
/// in place only while it has one owner.
pub(crate) struct Update {
    optimizer: ModuleOptimizer,
    pub(crate) learning_rate: ModuleLearningRate,
    backup: Option<Backup>,
    /// Of parameters whose update has panicked: their states are lost in `optimizer`.
    spares: HashMap<ParamId, ModuleOptimizer>,
    /// If states wait on the host.
    placement: Option<Arc<Placement>>,
    /// The records of the states that do.
    waiting: HashMap<ParamId, Bytes>,
}

impl Update {
    pub(crate) fn new(optimizer: ModuleOptimizer) -> Self {
        Self {
            optimizer,
            learning_rate: 0.0.into(),
            backup: None,
            spares: HashMap::new(),
            placement: None,
            waiting: HashMap::new(),
        }
    }

    /// Lets the states wait where `placement` says.
    pub(crate) fn place(&mut self, placement: Option<Arc<Placement>>) {
        let optimizer = self.replace(SgdConfig::new().init());
        self.placement = placement;
        self.replace(optimizer);
    }

    /// The optimizer with all states, which it shares.
    pub(crate) fn optimizer(&self) -> ModuleOptimizer {
        match self.has_all() {
            true => self.optimizer.clone(),
            // Only a record brings the states of several optimizers together.
            false => self.optimizer.clone().load_record(self.to_record()),
        }
    }

    /// Puts another optimizer in, and returns the one before with all states.
    pub(crate) fn replace(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        if !self.has_all() {
            self.optimizer = self.optimizer();
            self.spares.clear();
            self.waiting.clear();
        }
        let before = std::mem::replace(&mut self.optimizer, optimizer);
        if self.placement.as_ref().is_some_and(|p| p.states_wait()) {
            let record = compact_records(|| self.optimizer.to_record());
            let mut states = split(record);
            let of_policies = states.remove(&ParamId::from(KEEPER_ID));
            self.waiting = states;
            self.optimizer = self.with_states(of_policies);
        }
        before
    }

    /// Whether the optimizer has all states itself.
    fn has_all(&self) -> bool {
        self.spares.is_empty() && self.waiting.is_empty()
    }

    /// The optimizer with the states of these records, and no other.
    fn with_states(&self, records: impl IntoIterator<Item = Bytes>) -> ModuleOptimizer {
        self.optimizer.clone().load_record(joined(records))
    }

    /// Replaces the optimizer, without the states that it has not itself, by what `change` makes of it, its only
    /// owner.
    pub(crate) fn change(&mut self, change: impl FnOnce(ModuleOptimizer) -> ModuleOptimizer) {
        let optimizer = std::mem::replace(&mut self.optimizer, SgdConfig::new().init());
        self.optimizer = change(optimizer);
    }

    pub(crate) fn to_record(&self) -> OptimizerRecord {
        let record = self.optimizer.to_record();
        if self.has_all() {
            return record;
        }
        let spares = self.spares.values().map(|spare| written(spare.to_record()));
        let waiting = self.waiting.values().map(|state| self.asked_for(state));
        joined([written(record)].into_iter().chain(spares).chain(waiting))
    }

    /// The record of a state that waits, in the form that was asked for: it waits as it is kept, in codes.
    fn asked_for(&self, state: &Bytes) -> Bytes {
        match holds_codes(state) && !records_are_compact() {
            true => written(self.with_states([state.clone()]).to_record()),
            false => state.clone(),
        }
    }

    /// Keeps the states of `parameters` for the pass that begins: those of optimizers that can panic in the
    /// middle of a step.
    pub(crate) fn back_up(&mut self, parameters: Vec<ParamId>) {
        let any = !parameters.is_empty();
        self.backup = any.then(|| Backup::of(&self.optimizer, parameters));
        let backup = self.backup.as_mut();
        backup
            .into_iter()
            .for_each(|backup| backup.add(&self.spares));
    }

    /// The pass is over.
    pub(crate) fn drop_backup(&mut self) {
        self.backup = None;
    }

    /// Steps `value` with `gradient`; neither has autodiff. If more gradients of its group follow, the
    /// state of the optimizer takes it, if it can.
    ///
    /// The step happens in place where the optimizer says that it does, and `value` has no other owner but
    /// the reserve, which is given up then.
    pub(crate) fn step<const D: usize>(
        &mut self,
        path: &str,
        id: ParamId,
        value: Tensor<D>,
        gradient: Tensor<D>,
        more_to_come: bool,
    ) -> Stepped<D> {
        let elements = value.shape().num_elements();
        // Until the update has succeeded there is a handle to the value.
        let call = StepCall::begin(more_to_come, value.clone());
        let waits = self
            .placement
            .as_ref()
            .is_some_and(|p| p.state_waits(elements));
        let waiting = self.waiting.get(&id).cloned();
        let is_own = waits || waiting.is_some();
        let step = || {
            let mut gradients = GradientsParams::new();
            gradients.register(id, gradient);
            let addressed = Addressed {
                path,
                // Burn asks the parameter for its autodiff state before it takes the inner value.
                param: Param::initialized(id, Tensor::from_inner(value)),
            };
            let learning_rate = self.learning_rate.clone();
            let mut own = is_own.then(|| self.with_states(waiting));
            let optimizer = match &mut own {
                Some(own) => own,
                None => self.spares.get_mut(&id).unwrap_or(&mut self.optimizer),
            };
            let stepped = optimizer.step(learning_rate, addressed, gradients);
            if let Some(own) = own {
                self.keep(id, own, waits);
            }
            stepped.param.into_value().inner()
        };
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(value) => Stepped {
                value: Some(value),
                in_place: call.writes_in_place(),
                result: match call.refusal() {
                    Some(reason) => Err(Box::new(reason)),
                    None => Ok(()),
                },
            },
            Err(panic) => {
                // A state that waits is that of before.
                if !is_own {
                    self.restore(path, id);
                }
                Stepped {
                    value: call.take_reserve(),
                    in_place: false,
                    result: Err(panic),
                }
            }
        }
    }

    /// Keeps the state of one parameter, for which it is to wait on the host or not.
    fn keep(&mut self, id: ParamId, optimizer: ModuleOptimizer, waits: bool) {
        if waits {
            let state = compact_records(|| written(optimizer.to_record()));
            self.waiting.insert(id, state.shared());
        } else {
            self.waiting.remove(&id);
            self.spares.insert(id, optimizer);
        }
    }

    fn restore(&mut self, path: &str, id: ParamId) {
        let backup = self.backup.as_ref();
        match backup.and_then(|backup| backup.of_one(id)) {
            Some(spare) => drop(self.spares.insert(id, spare)),
            None => log::error!(
                "an optimizer panicked and took its state of parameter `{path}` along, which starts anew: it \
                 was not kept, see `with_state_backup_limit`"
            ),
        }
    }
}

/// How the update of a parameter ended.
pub(crate) struct Stepped<const D: usize> {
    /// The value, of before or after the update if the optimizer panicked. There is none only if it panics
    /// while it writes in place.
    pub(crate) value: Option<Tensor<D>>,
    /// Whether the optimizer writes in place, and says before that nothing can go wrong.
    pub(crate) in_place: bool,
    /// How it panicked.
    pub(crate) result: std::thread::Result<()>,
}

/// A single parameter that shows its path in the model to a mapper: parameter groups match by
/// path and optimizer records store it.
#[derive(Clone, Debug)]
struct Addressed<'a, const D: usize> {
    path: &'a str,
    param: Param<Tensor<D>>,
}

impl<const D: usize> Module for Addressed<'_, D> {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.param.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        let param = self.param.fork(device);
        Self { param, ..self }
    }

    fn to_device(self, device: &Device) -> Self {
        let param = self.param.to_device(device);
        Self { param, ..self }
    }

    fn train(self) -> Self {
        let param = self.param.train();
        Self { param, ..self }
    }

    fn valid(&self) -> Self {
        let param = self.param.valid();
        Self { param, ..*self }
    }

    fn materialize(self) -> Self {
        let param = self.param.materialize();
        Self { param, ..self }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        // Burn joins the names of the entered modules with dots, so one name can hold the path.
        visitor.enter_module(self.path, "Parameter");
        self.param.visit(visitor);
        visitor.exit_module(self.path, "Parameter");
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        mapper.enter_module(self.path, "Parameter");
        let param = Module::map(self.param, mapper);
        mapper.exit_module(self.path, "Parameter");
        Self { param, ..self }
    }
}
