use std::any::Any;
use std::cell::RefCell;

use burn::module::{Param, ParamGroup, ParamId};
use burn::optim::{GradientsParams, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::update::Addressed;
use crate::optim::Averaged;

/// What the paths have in common under which a record of the optimizer holds averages.
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

/// Keeps averages as the optimizer states of parameters that no model has, as [`Keeper`](super::keeper::Keeper) does the
/// state of the policies: records and checkpoints carry them along, and optimizers without averages pass them over.
#[derive(Clone)]
pub(crate) struct AverageKeeper;

thread_local! {
    /// The average that is given to the optimizer.
    static GIVEN: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

impl AverageKeeper {
    /// Gives averages a place in `optimizer`: from now on, it can load them from a record. Those that it had are gone.
    pub(crate) fn join(optimizer: ModuleOptimizer) -> ModuleOptimizer {
        optimizer.with_group(ParamGroup::from_predicate(PATH), Self, None)
    }

    /// Lets `optimizer`, which was joined, hold the average of this parameter, which takes over what it has loaded.
    pub(crate) fn restore<const D: usize>(
        optimizer: &mut ModuleOptimizer,
        parameter: ParamId,
        average: &Averaged<D>,
        device: &Device,
    ) {
        GIVEN.set(Some(Box::new(average.clone())));
        let id = average_id(parameter);
        let nothing = Tensor::<D>::zeros([1; D], device);
        let mut gradients = GradientsParams::new();
        gradients.register(id, nothing.clone());
        // Only a step gives and takes a state.
        let addressed = Addressed {
            path: PATH,
            param: Param::initialized(id, Tensor::from_inner(nothing)),
        };
        optimizer.step(0.0, addressed, gradients);
        GIVEN.take();
    }
}

impl Optimizer for AverageKeeper {
    type State<const D: usize> = Averaged<D>;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        nothing: Tensor<D>,
        _gradient: Tensor<D>,
        loaded: Option<Averaged<D>>,
    ) -> (Tensor<D>, Option<Averaged<D>>) {
        let given = GIVEN
            .take()
            .and_then(|given| given.downcast::<Averaged<D>>().ok());
        let average = match (given, loaded) {
            (Some(given), Some(loaded)) => {
                given.load(&loaded);
                Some(*given)
            }
            (given, loaded) => given.map(|given| *given).or(loaded),
        };
        (nothing, average)
    }

    fn to_device<const D: usize>(average: Averaged<D>, _device: &Device) -> Averaged<D> {
        average
    }
}
