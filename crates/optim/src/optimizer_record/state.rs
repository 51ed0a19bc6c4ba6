use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_pack::{Reader, Scalar, Tensor, Writer};

use super::names::{RANK, is_compact};
use crate::error::OptimError;

/// The state of one parameter in a record, with the names of the record.
#[derive(Default)]
pub struct RecordedState {
    /// Id of the parameter.
    pub id: String,
    pub path: Option<String>,
    pub scalars: BTreeMap<String, Scalar>,
    pub tensors: Vec<Tensor>,
}

impl RecordedState {
    /// Returns the entry of a parameter that has no state.
    pub fn none(id: ParamId, path: &str, dims: usize) -> Self {
        let id = id.val().to_string();
        Self {
            path: Some(path.to_string()),
            scalars: [(format!("{id}.{RANK}"), dims.into())].into(),
            tensors: Vec::new(),
            id,
        }
    }

    /// Returns the number of dimensions of the parameter.
    pub fn num_dims(&self) -> Result<usize, OptimError> {
        let name = format!("{}.{RANK}", self.id);
        match (self.scalars.get(&name), self.tensors.first()) {
            (Some(dims), _) => usize::try_from(*dims)
                .map_err(|_| unreadable(format!("`{name}` is not a valid number of dimensions"))),
            (None, Some(tensor)) => Ok(tensor.shape.num_dims()),
            (None, None) => Err(unreadable(format!("there is no `{name}`"))),
        }
    }

    /// Returns `true` if a tensor holds quantized values.
    pub fn is_compact(&self) -> bool {
        self.tensors.iter().any(|tensor| is_compact(&tensor.name))
    }

    /// Returns the names of all tensors and scalars, without the parameter id.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let tensors = self.tensors.iter().map(|tensor| &tensor.name);
        let names = tensors.chain(self.scalars.keys());
        names.map(|name| self.name_in_state(name))
    }

    /// Removes the parameter id: `moment_1` for `7.moment_1`.
    pub fn name_in_state<'a>(&self, name: &'a str) -> &'a str {
        let name = name.strip_prefix(&self.id).unwrap_or(name);
        name.trim_start_matches('.')
    }
}

/// Parses a serialized record. Returns its states by parameter id.
pub fn read(record: Bytes) -> Result<BTreeMap<u64, RecordedState>, OptimError> {
    read_pack(Reader::from_bytes(record).map_err(unreadable)?)
}

/// Returns the states in a record by parameter id. The tensors of a file are read when they are used.
pub fn read_pack(reader: Reader) -> Result<BTreeMap<u64, RecordedState>, OptimError> {
    let mut states = BTreeMap::<u64, RecordedState>::new();
    for (name, scalar) in reader.scalars() {
        let id = name.split('.').next().unwrap_or_default();
        let id = id
            .parse()
            .map_err(|_| unreadable(format!("`{name}` is not a parameter id")))?;
        let state = states.entry(id).or_default();
        state.scalars.insert(name.clone(), *scalar);
    }
    let mut paths = reader.metadata().clone();
    for tensor in reader.into_tensors().map_err(unreadable)? {
        let id = tensor
            .param_id
            .ok_or_else(|| unreadable(format!("`{}` contains no parameter id", tensor.name)))?;
        states.entry(id).or_default().tensors.push(tensor);
    }
    for (id, state) in &mut states {
        state.id = id.to_string();
        state.path = paths.remove(&state.id);
    }
    Ok(states)
}

/// Serializes a record of these states.
pub fn write(states: impl IntoIterator<Item = RecordedState>) -> Result<Bytes, OptimError> {
    let mut all = RecordedState::default();
    let mut paths = BTreeMap::new();
    for state in states {
        all.tensors.extend(state.tensors);
        all.scalars.extend(state.scalars);
        paths.extend(state.path.map(|path| (state.id, path)));
    }
    let writer = writer(all.tensors, &all.scalars, &paths);
    writer.into_bytes().map_err(unreadable)
}

/// Creates the writer of a record, with the path of each parameter by its id.
pub(super) fn writer(
    tensors: Vec<Tensor>,
    scalars: &BTreeMap<String, Scalar>,
    paths: &BTreeMap<String, String>,
) -> Writer {
    let mut writer = Writer::new(tensors);
    for (name, scalar) in scalars {
        writer = writer.with_scalar(name, *scalar);
    }
    for (id, path) in paths {
        writer = writer.with_metadata(id, path);
    }
    writer
}

/// Serializes `record`.
pub fn to_bytes(record: OptimizerRecord) -> Result<Bytes, OptimError> {
    record.into_bytes().map_err(unreadable)
}

pub fn unreadable(reason: impl ToString) -> OptimError {
    let reason = reason.to_string();
    OptimError::UnreadableRecord { reason }
}
