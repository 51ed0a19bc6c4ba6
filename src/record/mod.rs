//! Optimizer records: validation against the model and the optimizer, loading, and reading into host memory.

mod check;
mod model;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[cfg(feature = "train")]
use backburn_base::Parameter;
use backburn_optim::optimizer_record::{
    RecordedState, load_file_in_own_memory, load_in_own_memory, read, read_pack, to_bytes,
    unreadable,
};
use burn::module::{Module, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
#[cfg(feature = "train")]
use burn::store::ModuleRecord;
use burn::tensor::Bytes;

use crate::error::FusedError;
use crate::shared_optimizer::{EXTRA_STATE_ID, is_average, orthogonalizes};

use check::{VELOCITY, check};
#[cfg(feature = "train")]
use check::{check_averages, check_fit};
pub(crate) use model::save_model;

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
