use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use crate::policy::PolicyState;

/// An optimizer without states, for parameters that were removed from the model.
#[derive(Clone)]
pub(super) struct Removed;

impl Optimizer for Removed {
    type State<const D: usize> = PolicyState;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        _parameter: Tensor<D>,
        _gradient: Tensor<D>,
        _state: Option<PolicyState>,
    ) -> (Tensor<D>, Option<PolicyState>) {
        panic!(
            "it was removed from the model together with its optimizer state: add it again with \
             `FusedOptimizer::change_model`, or create a new optimizer"
        )
    }

    fn to_device<const D: usize>(state: PolicyState, _device: &Device) -> PolicyState {
        state
    }
}
