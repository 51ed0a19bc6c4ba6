//! What the optimizer keeps beside states of parameters: as the states of parameters that no model has. Burn's optimizers, records
//! and checkpoints carry it along, and optimizers without it pass it over.

use std::cell::RefCell;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::named_param::step_one;
use super::state::PolicyState;
use crate::optim::AverageState;
use crate::parameters::with_rank;

/// The parameter under which a record of the optimizer holds the state of the policies. (The loss
/// scale came first.)
pub(crate) const EXTRA_STATE_ID: u64 = u64::from_be_bytes(*b"lossscal");

impl PolicyState {
    /// Gives the state a place in `optimizer`: from now on, it can load it from a record.
    pub(crate) fn join(&self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        let group = ParamGroup::from_ids(vec![EXTRA_STATE_ID.into()]);
        optimizer.with_group(group, self.clone(), None)
    }

    /// Takes over the state that `optimizer`, which was joined, has loaded, if it has. From now on its
    /// records show the state as it is.
    pub(crate) fn take_over(&self, optimizer: &mut ModuleOptimizer, device: &Device) {
        exchange_state(optimizer, EXTRA_STATE_ID.into(), 1, "", device);
    }
}

/// Keeps itself.
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

/// The path under which a record of the optimizer holds averages.
const PATH: &str = "backburn.average";

/// The id under which the optimizer holds the average of a parameter: that of no other, but by a chance of one in 2^64 /
/// the number of parameters.
pub(crate) fn average_id(parameter: ParamId) -> ParamId {
    ParamId::from(parameter.val() ^ u64::from_be_bytes(*b"averaged"))
}

/// Whether what a record has under this path is an average.
pub(crate) fn is_average(path: Option<&str>) -> bool {
    path == Some(PATH)
}

/// Keeps averages.
#[derive(Clone)]
pub(crate) struct AverageExtraState;

thread_local! {
    /// The average that is given to the optimizer.
    static GIVEN: RefCell<Option<AverageState>> = const { RefCell::new(None) };
}

impl AverageExtraState {
    /// Gives averages a place in `optimizer`: from now on, it can load them from a record. Those that it had are gone.
    pub(crate) fn join(optimizer: ModuleOptimizer) -> ModuleOptimizer {
        optimizer.with_group(ParamGroup::from_path(PATH), Self, None)
    }

    /// Lets `optimizer`, which was joined, hold this average of a parameter of this rank, which takes over what it has
    /// loaded.
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

/// Lets the keeper of this id and path have the state that `optimizer` has, and give it another: only a step does.
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
