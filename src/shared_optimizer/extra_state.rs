//! Extra state in the optimizer: stored as the state of parameters that no model has. Burn's optimizers, records and
//! checkpoints include it, and optimizers without it ignore it.

use std::cell::RefCell;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::step_one;
use crate::optim::AverageState;
use crate::parameters::with_rank;
use crate::policy::PolicyState;

/// The parameter id under which an optimizer record holds the policy state. (The name dates from the loss scale.)
pub(crate) const EXTRA_STATE_ID: u64 = u64::from_be_bytes(*b"lossscal");

impl PolicyState {
    /// Registers the state in `optimizer`, which can then load it from a record.
    pub(crate) fn join(&self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        let group = ParamGroup::from_ids(vec![EXTRA_STATE_ID.into()]);
        optimizer.with_group(group, self.clone(), None)
    }

    /// Restores the state that `optimizer` has loaded, if there is one. From now on the optimizer's records contain
    /// the live state.
    pub(crate) fn take_over(&self, optimizer: &mut ModuleOptimizer, device: &Device) {
        exchange_state(optimizer, EXTRA_STATE_ID.into(), 1, "", device);
    }
}

/// An optimizer whose state is the policy state itself.
impl Optimizer for PolicyState {
    type State<const D: usize> = Self;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        nothing: Tensor<D>,
        _gradient: Tensor<D>,
        loaded: Option<Self>,
    ) -> (Tensor<D>, Option<Self>) {
        if let Some(loaded) = loaded {
            self.restore(&loaded);
        }
        (nothing, Some(self.clone()))
    }

    fn to_device<const D: usize>(state: Self, _device: &Device) -> Self {
        state
    }
}

/// The path under which an optimizer record holds averages.
const PATH: &str = "backburn.average";

/// Returns the id under which the optimizer holds the average of a parameter. The chance that another parameter has it
/// is 2^-64 times the number of parameters.
pub(crate) fn average_id(parameter: ParamId) -> ParamId {
    ParamId::from(parameter.val() ^ u64::from_be_bytes(*b"averaged"))
}

/// Returns `true` if a record holds an average under this path.
pub(crate) fn is_average(path: Option<&str>) -> bool {
    path == Some(PATH)
}

/// An optimizer whose states are averages of weights.
#[derive(Clone)]
pub(crate) struct AverageExtraState;

thread_local! {
    /// The average that the next step stores in the optimizer.
    static GIVEN: RefCell<Option<AverageState>> = const { RefCell::new(None) };
}

impl AverageExtraState {
    /// Registers averages in `optimizer`, which can then load them from a record. Averages that it had are dropped.
    pub(crate) fn join(optimizer: ModuleOptimizer) -> ModuleOptimizer {
        optimizer.with_group(ParamGroup::from_path(PATH), Self, None)
    }

    /// Stores the average of a parameter in `optimizer`, and restores what the optimizer has loaded for it.
    pub(crate) fn exchange(
        optimizer: &mut ModuleOptimizer,
        parameter: ParamId,
        rank: usize,
        average: &AverageState,
        device: &Device,
    ) {
        GIVEN.set(Some(average.clone()));
        exchange_state(optimizer, average_id(parameter), rank, PATH, device);
        GIVEN.take();
    }
}

impl Optimizer for AverageExtraState {
    type State<const D: usize> = AverageState;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        nothing: Tensor<D>,
        _gradient: Tensor<D>,
        loaded: Option<AverageState>,
    ) -> (Tensor<D>, Option<AverageState>) {
        let given = GIVEN.take();
        if let (Some(given), Some(loaded)) = (&given, loaded) {
            given.load(&loaded);
        }
        (nothing, given)
    }

    fn to_device<const D: usize>(average: AverageState, _device: &Device) -> AverageState {
        average
    }
}

/// Stores extra state in the optimizer under this id and path, and restores what the optimizer has loaded for it. Burn's
/// only interface for both is a step.
fn exchange_state(
    optimizer: &mut ModuleOptimizer,
    id: ParamId,
    rank: usize,
    path: &str,
    device: &Device,
) {
    let nothing = || with_rank!(rank, D => Tensor::<D>::zeros([1; D], device).into());
    step_one(optimizer, 0.0.into(), path, id, nothing(), nothing());
}
