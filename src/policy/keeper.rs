use burn::module::{Param, ParamGroup, ParamId};
use burn::optim::{GradientsParams, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::state::PolicyState;

/// The parameter under which a record of the optimizer holds the state of the policies. (The loss
/// scale came first.)
pub(crate) const KEEPER_ID: u64 = u64::from_be_bytes(*b"lossscal");

/// Keeps the state of the policies as the optimizer state of a parameter that no model has: Burn's
/// optimizers, records and checkpoints carry it along, and those without such policies pass it over.
#[derive(Clone)]
pub(crate) struct Keeper {
    state: PolicyState,
}

impl Keeper {
    pub(super) fn new(state: PolicyState) -> Self {
        Self { state }
    }

    /// Gives the state a place in `optimizer`: from now on, it can load it from a record.
    pub(crate) fn join(&self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        let group = ParamGroup::from_ids(vec![KEEPER_ID.into()]);
        optimizer.with_group(group, self.clone(), None)
    }

    /// Takes over the state that `optimizer`, which was joined, has loaded, if it has. From now on its
    /// records show the state as it is.
    pub(crate) fn restore(&self, optimizer: &mut ModuleOptimizer, device: &Device) {
        // Only a step gives and takes a state.
        let id = ParamId::from(KEEPER_ID);
        let nothing = Tensor::<1>::zeros([1], &device.clone().inner());
        let mut gradients = GradientsParams::new();
        gradients.register(id, nothing.clone());
        let parameter = Param::initialized(id, Tensor::from_inner(nothing));
        optimizer.step(0.0, parameter, gradients);
    }
}

impl Optimizer for Keeper {
    type State<const D: usize> = PolicyState;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        nothing: Tensor<D>,
        _gradient: Tensor<D>,
        loaded: Option<PolicyState>,
    ) -> (Tensor<D>, Option<PolicyState>) {
        if let Some(loaded) = loaded {
            self.state.restore(&loaded);
        }
        (nothing, Some(self.state.clone()))
    }

    fn to_device<const D: usize>(state: PolicyState, _device: &Device) -> PolicyState {
        state
    }
}
