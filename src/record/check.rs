//! Checks that the states of a record fit the model and the optimizer.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap};

use backburn_base::caught::catch_message;
use backburn_base::{Parameter, list};
use backburn_optim::AverageState;
use backburn_optim::optimizer_record::{
    RANK, RecordedState, compact_records, expected, is_of_elements, stock_can_ignore, to_bytes,
    unreadable, write,
};
use burn::module::{Module, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord, SgdConfig};
use burn::tensor::Shape;

use super::sample::sample;
use super::{States, states};
use crate::error::FusedError;
use crate::shared_optimizer::{ExtraState, average_id, is_average, orthogonalizes};

/// The states of Muon and of SGD with momentum have the same name.
pub(super) const VELOCITY: &str = "momentum.velocity";

/// Returns an error unless these are states and averages of the parameters of `model`, and `optimizer` can load them all.
pub(super) fn check<M: Module>(
    [states, averages]: [States; 2],
    orthogonalized: Option<&BTreeSet<String>>,
    optimizer: &ModuleOptimizer,
    model: &M,
) -> Result<(), FusedError> {
    let empty = optimizer.clone().load_record(OptimizerRecord::default());
    let parameters = check_fit(&states, model, &empty)?;
    for (id, state) in states {
        if let Some(orthogonalized) = orthogonalized {
            check_velocity(id.into(), &state, orthogonalized, &empty)?;
        }
        check_loads(state, &empty)?;
    }
    check_averages(averages, &parameters)
}

/// Returns an error if Muon saved the velocity of a parameter and another optimizer would load it, or the reverse. `saved` are the
/// paths whose velocity belongs to Muon.
fn check_velocity(
    id: ParamId,
    state: &RecordedState,
    saved: &BTreeSet<String>,
    empty: &ModuleOptimizer,
) -> Result<(), FusedError> {
    let path = state.path.clone().unwrap_or_default();
    let velocity = state.names().find(|name| name.contains(VELOCITY));
    match velocity {
        Some(velocity) if saved.contains(&path) != orthogonalizes(empty, id, &path) => {
            Err(FusedError::RecordOfAnotherOptimizer {
                state: velocity.to_string(),
                path,
            })
        }
        _ => Ok(()),
    }
}

/// Returns the parameters of `model`, or an error if a state does not fit one. `empty` is the optimizer without states.
pub(super) fn check_fit<M: Module>(
    states: &States,
    model: &M,
    empty: &ModuleOptimizer,
) -> Result<HashMap<ParamId, Parameter>, FusedError> {
    let parameters = list(model).into_iter();
    let parameters = parameters.map(|parameter| (parameter.param.id(), parameter));
    let parameters = parameters.collect::<HashMap<_, _>>();
    for (id, state) in states {
        let id = ParamId::from(*id);
        let Some(parameter) = parameters.get(&id) else {
            let path = state.path.clone().unwrap_or_default();
            return Err(FusedError::ForeignRecord { id, path });
        };
        // This also works for an attached model: a placeholder has the shape of its value.
        let made = LazyCell::new(|| sample(empty, parameter, state.is_compact()));
        let shape = parameter.param.shape();
        check_fits(state, &parameter.path, &shape, || (*made).as_ref())?;
    }
    Ok(parameters)
}

/// Returns an error if a state has neither the shape of its parameter, nor size one in some dimensions (Adafactor), nor the shape in
/// a `sample` (one number per block of columns). Tensors with another number of dimensions are not checked.
fn check_fits<'a>(
    state: &RecordedState,
    path: &str,
    shape: &Shape,
    sample: impl Fn() -> Option<&'a RecordedState>,
) -> Result<(), FusedError> {
    let dims = state.num_dims()?;
    if dims != shape.num_dims() {
        return Err(FusedError::RecordRank {
            path: path.to_string(),
            expected: shape.num_dims(),
            found: dims,
        });
    }
    let of_another_shape = |name: &str, found: Vec<usize>| FusedError::RecordShape {
        path: path.to_string(),
        state: state.name_in_state(name).to_string(),
        expected: shape.to_vec(),
        found,
    };
    for tensor in &state.tensors {
        let is_mean = is_average(state.path.as_deref()) && tensor.name.ends_with(".average");
        let is_of_elements = is_mean || is_of_elements(&tensor.name);
        if is_of_elements && !tensor.dtype.is_float() {
            let name = state.name_in_state(&tensor.name);
            let reason = format!("`{path}`: `{name}` is in {:?}", tensor.dtype);
            return Err(unreadable(reason).into());
        }
        let fits = if is_of_elements {
            tensor.shape == *shape
        } else {
            let mut sizes = tensor.shape.iter().zip(shape.iter());
            let fits = sizes.all(|(found, expected)| *found == 1 || found == expected);
            fits || tensor.shape.num_dims() != dims
        };
        let is_it = |it: &burn_pack::Tensor| it.name == tensor.name && it.shape == tensor.shape;
        let is_made = || sample().is_some_and(|made| made.tensors.iter().any(is_it));
        if !fits && !is_made() {
            return Err(of_another_shape(&tensor.name, tensor.shape.to_vec()));
        }
    }
    for (name, scalar) in &state.scalars {
        let Some(expected) = expected(state.name_in_state(name), shape) else {
            continue;
        };
        let found = usize::try_from(*scalar).unwrap_or_default();
        let is_made = || {
            let made = sample().and_then(|made| made.scalars.get(name));
            made.is_some_and(|made| usize::try_from(*made) == Ok(found))
        };
        if found != expected && !is_made() {
            return Err(of_another_shape(name, vec![found]));
        }
    }
    Ok(())
}

/// Returns an error if an average has another shape than its parameter, or can't be loaded: it would silently be restarted. One
/// without an entry except its rank is ignored.
pub(super) fn check_averages(
    mut averages: States,
    parameters: &HashMap<ParamId, Parameter>,
) -> Result<(), FusedError> {
    let damaged =
        |path: &str, reason: String| unreadable(format!("the average of `{path}`: {reason}"));
    // An optimizer that needs no tensor in its state, such as SGD, accepts an average when it loads, and records only the
    // number of dimensions, in a wrapper also that of its steps.
    let is_kept = |name: &str| name != RANK && !stock_can_ignore(name);
    averages.retain(|_, average| average.names().any(is_kept));
    let keeper = AverageState::join(SgdConfig::new().init());
    for (id, Parameter { path, param, .. }) in parameters {
        let Some(average) = averages.remove(&average_id(*id).val()) else {
            continue;
        };
        check_fits(&average, path, &param.shape(), || None)?;
        let record = OptimizerRecord::from_bytes(write([average])?).map_err(unreadable)?;
        let loaded = catch_message(|| keeper.clone().load_record(record));
        let loaded = loaded.map_err(|reason| damaged(path, reason))?;
        let [_, loaded] = states(to_bytes(loaded.to_record())?)?;
        if loaded.is_empty() {
            let reason = "an entry is missing, or has another type".into();
            return Err(damaged(path, reason).into());
        }
    }
    Ok(())
}

/// Returns an error if `empty`, the optimizer without states, can't load all entries of the state: Burn would
/// silently start with a fresh state.
fn check_loads(state: RecordedState, empty: &ModuleOptimizer) -> Result<(), FusedError> {
    let names = |state: &RecordedState| -> Vec<String> {
        let names = state.names();
        let names = names.filter(|name| *name != RANK && !stock_can_ignore(name));
        names.map(str::to_string).collect()
    };
    let (found, is_compact) = (names(&state), state.is_compact());
    let path = state.path.clone().unwrap_or(state.id.clone());
    let record = OptimizerRecord::from_bytes(write([state])?).map_err(unreadable)?;
    // Optimizers don't validate tensors and may panic on a damaged record.
    let loaded = catch_message(|| empty.clone().load_record(record));
    let loaded = loaded.map_err(|reason| unreadable(format!("the state of `{path}`: {reason}")))?;
    let recorded = if is_compact {
        compact_records(|| loaded.to_record())
    } else {
        loaded.to_record()
    };
    // A large state is in memory twice, not three times.
    drop(loaded);
    let [recorded, _] = states(to_bytes(recorded)?)?;
    let loaded = recorded.values().flat_map(names).collect::<Vec<_>>();
    match found.into_iter().find(|name| !loaded.contains(name)) {
        Some(state) => Err(FusedError::RecordOfAnotherOptimizer { path, state }),
        None => Ok(()),
    }
}
