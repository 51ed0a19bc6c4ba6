use std::collections::HashSet;

use burn::module::ParamId;
use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use crate::policy::PolicyState;

/// The parameters that were removed from the model, each in a group of the optimizer that has no state.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemovedParameters {
    ids: HashSet<ParamId>,
    /// The number of groups.
    pub(super) groups: usize,
}

/// Maximum number of groups for removed parameters. Each costs a comparison per step. With more, the states go through a record,
/// which copies them all. If a record would change them (Burn loads f32), the groups stay: about 250 bytes each.
const MAX_GROUPS: usize = 32;

impl RemovedParameters {
    /// Adds the parameters of one group.
    pub(super) fn add(&mut self, parameters: &[ParamId]) {
        self.ids.extend(parameters);
        self.groups += 1;
    }

    /// Returns a removed parameter for which `is_here` returns `true`.
    pub(super) fn removed_id_in_model(&self, is_here: impl Fn(ParamId) -> bool) -> Option<ParamId> {
        self.ids.iter().copied().find(|id| is_here(*id))
    }

    pub(super) fn has_many_groups(&self) -> bool {
        self.groups > MAX_GROUPS
    }
}

/// The optimizer of the parameters that were removed from the model. It has no states, and its step panics.
#[derive(Clone)]
pub(super) struct RemovedOptimizer;

impl Optimizer for RemovedOptimizer {
    // Any state that Burn can record: there never is one.
    type State<const D: usize> = PolicyState;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        _parameter: Tensor<D>,
        _gradient: Tensor<D>,
        _state: Option<PolicyState>,
    ) -> (Tensor<D>, Option<PolicyState>) {
        panic!(
            "it was removed from the model of an earlier training together with its optimizer state: create a new \
             optimizer, or add the parameter again with `FusedOptimizer::change_model` before `into_parts`"
        )
    }

    fn to_device<const D: usize>(state: PolicyState, _device: &Device) -> PolicyState {
        state
    }
}
