use std::collections::HashSet;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, OptimizerRecord};
use burn::tensor::{Device, Tensor};

use super::state::PolicyState;
use crate::optimizer_record::compact_records;

/// Parameters that have left the model, and their states with them.
#[derive(Clone)]
pub(super) struct Departed {
    parameters: HashSet<ParamId>,
    /// The optimizer as it was before, without states.
    before: ModuleOptimizer,
}

impl Departed {
    pub(super) fn none_of(optimizer: &ModuleOptimizer) -> Self {
        Self {
            parameters: HashSet::new(),
            before: optimizer.clone().load_record(OptimizerRecord::default()),
        }
    }

    /// The optimizer as it was before any of them left, without states.
    pub(super) fn before(&self) -> &ModuleOptimizer {
        &self.before
    }

    /// Gives something a place in the optimizer as it was before, too.
    pub(super) fn make_place(&mut self, join: impl Fn(ModuleOptimizer) -> ModuleOptimizer) {
        self.before = join(self.before.clone());
    }

    /// `optimizer` without the states of `parameters`. Burn drops those of a group that another optimizer is added for,
    /// and no others.
    pub(super) fn leave(
        &mut self,
        optimizer: ModuleOptimizer,
        parameters: Vec<ParamId>,
    ) -> ModuleOptimizer {
        self.parameters.extend(&parameters);
        optimizer.with_group(ParamGroup::from_ids(parameters), Gone, None)
    }

    pub(super) fn are_back(&self, is_here: impl Fn(ParamId) -> bool) -> bool {
        self.parameters.iter().any(|id| is_here(*id))
    }

    /// `optimizer` as it was before, with the states that it still has: they come by way of a record.
    pub(super) fn back(self, optimizer: &ModuleOptimizer) -> ModuleOptimizer {
        let record = compact_records(|| optimizer.to_record());
        self.before.load_record(record)
    }
}

/// Takes the place of the optimizer of parameters that have left the model.
#[derive(Clone)]
struct Gone;

impl Optimizer for Gone {
    type State<const D: usize> = PolicyState;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        _parameter: Tensor<D>,
        _gradient: Tensor<D>,
        _state: Option<PolicyState>,
    ) -> (Tensor<D>, Option<PolicyState>) {
        panic!(
            "it had left the model, and its optimizer state with it: let it come back with \
             `FusedOptimizer::change_model`, or make the optimizer anew"
        )
    }

    fn to_device<const D: usize>(state: PolicyState, _device: &Device) -> PolicyState {
        state
    }
}
