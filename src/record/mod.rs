//! Optimizer records: validation against the model and the optimizer, loading, and reading into host memory.

mod model;
mod sample;

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use backburn_base::caught::catch_message;
use backburn_base::{Parameter, list};
use backburn_optim::AverageState;
use backburn_optim::optimizer_record::{
    RANK, RecordedState, compact_records, expected, is_of_elements, load_file_in_own_memory,
    load_in_own_memory, read, read_pack, stock_can_ignore, to_bytes, unreadable, write,
};
use burn::module::{Module, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord, SgdConfig};
#[cfg(feature = "train")]
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Shape};

use crate::error::FusedError;
use crate::shared_optimizer::{EXTRA_STATE_ID, ExtraState, average_id, is_average, orthogonalizes};

pub(crate) use model::save_model;
use sample::sample;

/// The states of Muon and of SGD with momentum have the same name.
const VELOCITY: &str = "momentum.velocity";

/// Returns the paths of the parameters whose velocity in the record `file` belongs to Muon. `fresh` is the optimizer that saved it.
/// Returns `None` if the record contains no velocity.
pub(crate) fn orthogonalized(
    file: &Path,
    fresh: &ModuleOptimizer,
) -> Result<Option<BTreeSet<String>>, FusedError> {
    let reader = burn_pack::Reader::from_file(file).map_err(unreadable)?;
    let names = reader.tensor_names().into_iter();
    let names = names.filter(|name| name.contains(VELOCITY));
    let ids: BTreeSet<_> = names.filter_map(|name| name.split('.').next()).collect();
    let orthogonalized = |id: &str| {
        let path = reader.metadata().get(id)?;
        let id = id.parse::<u64>().ok()?;
        orthogonalizes(fresh, id.into(), path).then(|| path.clone())
    };
    Ok((!ids.is_empty()).then(|| ids.into_iter().filter_map(orthogonalized).collect()))
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

/// Returns `optimizer` with the states in `record`, if they are states of the parameters of `model`
/// and `optimizer` can load them all.
pub(crate) fn load<M: Module>(
    record: OptimizerRecord,
    optimizer: &ModuleOptimizer,
    model: &M,
) -> Result<ModuleOptimizer, FusedError> {
    let bytes = to_bytes(record)?.shared();
    check(states(bytes.clone())?, None, optimizer, model)?;
    let record = OptimizerRecord::from_bytes(bytes).map_err(unreadable)?;
    Ok(load_in_own_memory(optimizer, record))
}

/// Returns `optimizer` with the states in the record `file`, as [`load`] does, and the ids of their parameters. The record is not loaded
/// as a whole. `orthogonalized` are the paths whose velocity belongs to Muon, if they are known.
pub(crate) fn load_file<M: Module>(
    file: &Path,
    orthogonalized: Option<&BTreeSet<String>>,
    optimizer: &ModuleOptimizer,
    model: &M,
) -> Result<(ModuleOptimizer, BTreeSet<ParamId>), FusedError> {
    let reader = burn_pack::Reader::from_file(file).map_err(unreadable)?;
    let tensors = reader.tensor_names().len();
    let states = split(read_pack(reader)?);
    let ids = states[0].keys().copied().map(ParamId::from).collect();
    check(states, orthogonalized, optimizer, model)?;
    let loaded = load_file_in_own_memory(optimizer, file, tensors)?;
    Ok((loaded, ids))
}

/// Returns an error unless these are states and averages of the parameters of `model`, and `optimizer` can load them all.
fn check<M: Module>(
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

/// Copies all tensors of an optimizer record to host memory.
pub(crate) fn read_into_host(record: OptimizerRecord) -> OptimizerRecord {
    let bytes = to_bytes(record).unwrap_or_else(|error| panic!("{error}"));
    OptimizerRecord::from_bytes(bytes).expect("Burn reads what it has written")
}

/// Copies all tensors of a model record to host memory.
#[cfg(feature = "train")]
pub(crate) fn read_model_into_host(record: ModuleRecord) -> ModuleRecord {
    let bytes = record
        .into_bytes()
        .unwrap_or_else(|error| panic!("{error}"));
    ModuleRecord::from_bytes(bytes).expect("Burn reads what it has written")
}

/// Returns the ids and paths of the trained parameters without a state in `optimizer`. Returns an error if a state does not
/// belong to a parameter of `model`.
#[cfg(feature = "train")]
pub(crate) fn parameters_without_state<M: Module>(
    optimizer: &ModuleOptimizer,
    model: &M,
) -> Result<Vec<(ParamId, String)>, FusedError> {
    let [states, averages] = states(to_bytes(optimizer.to_record())?)?;
    let empty = optimizer.clone().load_record(OptimizerRecord::default());
    let parameters = check_fit(&states, model, &empty)?;
    check_averages(averages, &parameters)?;
    let stateless = parameters
        .into_iter()
        .filter(|(id, Parameter { param, .. })| {
            // `value` would initialize a lazy parameter.
            let in_training = param.is_initialized() && param.value().is_require_grad();
            in_training && !states.contains_key(&id.val())
        });
    Ok(stateless
        .map(|(id, parameter)| (id, parameter.path))
        .collect())
}

/// The states of a record by parameter id.
type States = BTreeMap<u64, RecordedState>;

/// Returns the states of parameters in a record, and the averages of weights.
fn states(record: Bytes) -> Result<[States; 2], FusedError> {
    Ok(split(read(record)?))
}

/// Divides all states of a record into those of parameters and the averages.
fn split(mut states: States) -> [States; 2] {
    states.remove(&EXTRA_STATE_ID);
    let (averages, states) = states
        .into_iter()
        .partition(|(_, state)| is_average(state.path.as_deref()));
    [states, averages]
}

/// Returns the parameters of `model`, or an error if a state does not fit one. `empty` is the optimizer without states.
fn check_fit<M: Module>(
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
fn check_averages(
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
