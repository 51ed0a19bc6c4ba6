//! Extra state in the optimizer: stored as the state of parameters that no model has. Burn's optimizers, records and
//! checkpoints include it, and optimizers without it ignore it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use backburn_base::caught::catch;
use backburn_base::{host, with_dims};
use backburn_optim::AverageState;
use backburn_optim::optimizer_record::{RecordedState, write};
use burn::module::{ParamGroup, ParamId};
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::extra_state_ids::{AVERAGE_PATH, EXTRA_STATE_ID, average_id};
use super::states::joined;
use super::step_one;
use crate::policy::PolicyState;

/// Extra state. Clones share it, so that a record contains the live state.
pub(crate) trait ExtraState: RecordState + Clone {
    /// Replaces the state by one that was loaded from a record.
    fn restore(&self, loaded: &Self);

    /// Returns the parameters that hold it.
    fn group() -> ParamGroup;

    /// Returns id and path of such a parameter. All have this path.
    fn parameter() -> (ParamId, &'static str);

    /// Registers the state in `optimizer`, which can then load it from a record.
    fn join(optimizer: ModuleOptimizer) -> ModuleOptimizer {
        // Burn can't remove a group.
        match is_registered::<Self>(&optimizer) {
            true => optimizer,
            false => optimizer.with_group(
                Self::group(),
                ExtraStateOptimizer::<Self>(PhantomData),
                None,
            ),
        }
    }

    /// Stores the state in `optimizer` for the parameter `id`, which has this number of dimensions, and restores what the
    /// optimizer has loaded for it. From now on the optimizer's records contain the live state.
    fn take_over(
        &self,
        optimizer: &mut ModuleOptimizer,
        id: ParamId,
        dims: usize,
        device: &Device,
    ) {
        STATE_TO_STORE.set(Some(Box::new(self.clone())));
        step_extra_state(optimizer, id, dims, Self::parameter().1, device);
        STATE_TO_STORE.take();
    }

    /// Drops the states that `optimizer` has for these parameters, each with its number of dimensions.
    fn drop_in(
        optimizer: &mut ModuleOptimizer,
        parameters: impl IntoIterator<Item = (ParamId, usize)>,
    ) {
        if !is_registered::<Self>(optimizer) {
            return;
        }
        let device = host(&Device::default());
        for (id, dims) in parameters {
            step_extra_state(optimizer, id, dims, Self::parameter().1, &device);
        }
    }
}

impl ExtraState for PolicyState {
    fn restore(&self, loaded: &Self) {
        // `loaded` may share this state.
        let loaded = *loaded.lock();
        *self.lock() = loaded;
    }

    fn group() -> ParamGroup {
        ParamGroup::from_ids(vec![EXTRA_STATE_ID.into()])
    }

    fn parameter() -> (ParamId, &'static str) {
        (EXTRA_STATE_ID.into(), "")
    }
}

impl ExtraState for AverageState {
    fn restore(&self, loaded: &Self) {
        self.load(loaded);
    }

    fn group() -> ParamGroup {
        ParamGroup::from_path(AVERAGE_PATH)
    }

    fn parameter() -> (ParamId, &'static str) {
        (average_id(EXTRA_STATE_ID.into()), AVERAGE_PATH)
    }
}

thread_local! {
    /// The state that the next step stores in the optimizer.
    static STATE_TO_STORE: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
    /// `true` after an optimizer has loaded extra state, or its absence.
    static IS_LOADED: Cell<bool> = const { Cell::new(false) };
}

/// The optimizer of extra state. A step stores or drops the state.
#[derive(Clone)]
struct ExtraStateOptimizer<S>(PhantomData<fn() -> S>);

/// Extra state as the state of a parameter.
#[derive(Clone)]
struct ParameterState<S>(S);

impl<S: RecordState> RecordState for ParameterState<S> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        self.0.state_flatten(prefix, sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        IS_LOADED.set(true);
        S::state_unflatten(prefix, source, device).map(Self)
    }
}

impl<S: ExtraState> Optimizer for ExtraStateOptimizer<S> {
    type State<const D: usize> = ParameterState<S>;

    fn step<const D: usize>(
        &self,
        _learning_rate: LearningRate,
        nothing: Tensor<D>,
        _gradient: Tensor<D>,
        loaded: Option<ParameterState<S>>,
    ) -> (Tensor<D>, Option<ParameterState<S>>) {
        let stored = STATE_TO_STORE
            .take()
            .and_then(|stored| stored.downcast::<S>().ok());
        if let (Some(stored), Some(ParameterState(loaded))) = (&stored, loaded) {
            stored.restore(&loaded);
        }
        (nothing, stored.map(|stored| ParameterState(*stored)))
    }

    fn to_device<const D: usize>(state: ParameterState<S>, _device: &Device) -> ParameterState<S> {
        state
    }
}

/// Returns `true` if `S` is registered in `optimizer`. Burn's only interface to the optimizer of a group that needs no step is
/// that it loads a state, here an empty one.
fn is_registered<S: ExtraState>(optimizer: &ModuleOptimizer) -> bool {
    let (id, path) = S::parameter();
    let nothing = write([RecordedState::none(id, path, 1)]);
    let nothing = nothing.expect("Burn writes what has no state");
    IS_LOADED.set(false);
    // The optimizer of the user may panic.
    let _ = catch(|| optimizer.clone().load_record(joined([nothing])));
    IS_LOADED.get()
}

/// Exchanges the extra state under this id and path. Burn's only interface for this is a step.
fn step_extra_state(
    optimizer: &mut ModuleOptimizer,
    id: ParamId,
    dims: usize,
    path: &str,
    device: &Device,
) {
    let nothing = || with_dims!(dims, D => Tensor::<D>::zeros([1; D], device).into());
    step_one(optimizer, 0.0.into(), path, id, nothing(), nothing());
}
