//! Optimizer records: read at once, and loaded after a look at the model and the optimizer that they are for.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Shape, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Writer};

use crate::device::caught;
use crate::error::FusedError;
use crate::optim::{
    WeightFormat, compact_records, expected, is_compact, low_bits_named, stock_can_ignore,
};
use crate::policy::KEEPER_ID;

/// What Burn's optimizers keep for every element of a parameter, under these names.
const OF_ELEMENTS: [&str; 5] = [
    "moment_1",
    "moment_2",
    "max_moment_2",
    "velocity",
    "momentum",
];

/// The scalar in which Burn's `ModuleOptimizer::to_record` keeps the rank of a parameter.
const RANK: &str = "__rank";

/// Returns `optimizer` with the states in `record`, if they are states of the parameters of `model`
/// and `optimizer` can load them all.
pub(crate) fn load<M: Module>(
    record: OptimizerRecord,
    optimizer: &ModuleOptimizer,
    model: &M,
) -> Result<ModuleOptimizer, FusedError> {
    // A record shows what it holds in its serialized form only.
    let bytes = record.into_bytes().map_err(unreadable)?.shared();
    let states = states(bytes.clone())?;
    check_fit(&states, model)?;
    let empty = optimizer.clone().load_record(OptimizerRecord::default());
    for state in states.into_values() {
        state.check_loads(&empty)?;
    }
    let record = OptimizerRecord::from_bytes(bytes).map_err(unreadable)?;
    Ok(optimizer.clone().load_record(record))
}

/// The same with all that it holds in host memory.
pub(crate) fn read_at_once(record: OptimizerRecord) -> OptimizerRecord {
    let bytes = record.into_bytes();
    let bytes = bytes.unwrap_or_else(|error| panic!("the optimizer state can't be read: {error}"));
    OptimizerRecord::from_bytes(bytes).expect("Burn reads what it has written")
}

/// The parameters in training of which `optimizer` has no state, with their paths. Refuses states that
/// are none of the parameters of `model`.
#[cfg(feature = "train")]
pub(crate) fn parameters_without_state<M: Module>(
    optimizer: &ModuleOptimizer,
    model: &M,
) -> Result<Vec<(ParamId, String)>, FusedError> {
    let bytes = optimizer.to_record().into_bytes().map_err(unreadable)?;
    let states = states(bytes)?;
    let parameters = check_fit(&states, model)?.found.into_iter();
    let stateless = parameters.filter(|(id, p)| p.in_training && !states.contains_key(&id.val()));
    Ok(stateless
        .map(|(id, parameter)| (id, parameter.path))
        .collect())
}

/// The words of the low bits in the record of one parameter, if it has any, with the format of the weights that lack
/// them.
pub(crate) fn low_bits(
    record: OptimizerRecord,
) -> Result<Option<(WeightFormat, Vec<u32>)>, FusedError> {
    let bytes = record.into_bytes().map_err(unreadable)?;
    for state in states(bytes)?.into_values() {
        let scalar = |name: &str| {
            let scalar = state.scalars.get(name);
            scalar.and_then(|scalar| usize::try_from(*scalar).ok())
        };
        for tensor in &state.tensors {
            if let Some(format) = low_bits_named(&tensor.name, scalar) {
                let bytes = tensor.to_bytes().map_err(unreadable)?;
                let data = TensorData::from_bytes(bytes, tensor.shape.clone(), tensor.dtype);
                return Ok(Some((format, data.iter::<u32>().collect())));
            }
        }
    }
    Ok(None)
}

/// What a record holds for one parameter.
#[derive(Default)]
struct State {
    id: String,
    path: Option<String>,
    scalars: BTreeMap<String, Scalar>,
    tensors: Vec<burn_pack::Tensor>,
}

/// The states in a record, without that of the policies.
fn states(record: Bytes) -> Result<BTreeMap<u64, State>, FusedError> {
    let reader = Reader::from_bytes(record).map_err(unreadable)?;
    let mut states = BTreeMap::<u64, State>::new();
    for (name, scalar) in reader.scalars() {
        let id = name.split('.').next().unwrap_or_default();
        let id = id
            .parse()
            .map_err(|_| unreadable(format!("`{name}` names no parameter id")))?;
        let state = states.entry(id).or_default();
        state.scalars.insert(name.clone(), *scalar);
    }
    let mut paths = reader.metadata().clone();
    for tensor in reader.into_tensors().map_err(unreadable)? {
        let id = tensor
            .param_id
            .ok_or_else(|| unreadable(format!("`{}` names no parameter id", tensor.name)))?;
        states.entry(id).or_default().tensors.push(tensor);
    }
    states.remove(&KEEPER_ID);
    for (id, state) in &mut states {
        state.id = id.to_string();
        state.path = paths.remove(&state.id);
    }
    Ok(states)
}

/// The parameters of `model`. Refuses states that are none of theirs.
fn check_fit<M: Module>(
    states: &BTreeMap<u64, State>,
    model: &M,
) -> Result<Parameters, FusedError> {
    let mut parameters = Parameters::default();
    model.visit(&mut parameters);
    for (id, state) in states {
        let id = ParamId::from(*id);
        let Some(parameter) = parameters.found.get(&id) else {
            let path = state.path.clone().unwrap_or_default();
            return Err(FusedError::ForeignRecord { id, path });
        };
        state.check_fits(&parameter.path, &parameter.shape)?;
    }
    Ok(parameters)
}

impl State {
    /// The rank of the parameter.
    fn rank(&self) -> Result<usize, FusedError> {
        let name = format!("{}.{RANK}", self.id);
        match (self.scalars.get(&name), self.tensors.first()) {
            (Some(rank), _) => {
                usize::try_from(*rank).map_err(|_| unreadable(format!("`{name}` holds no rank")))
            }
            (None, Some(tensor)) => Ok(tensor.shape.num_dims()),
            (None, None) => Err(unreadable(format!("there is no `{name}`"))),
        }
    }

    /// A state is as large as its parameter, or of size one in some dimensions (Adafactor keeps the
    /// rows and columns of a second moment). Tensors of another rank are the optimizer's own affair.
    fn check_fits(&self, path: &str, shape: &Shape) -> Result<(), FusedError> {
        let rank = self.rank()?;
        if rank != shape.num_dims() {
            return Err(FusedError::RecordRank {
                path: path.to_string(),
                expected: shape.num_dims(),
                found: rank,
            });
        }
        for tensor in &self.tensors {
            let leaf = tensor.name.rsplit('.').next().unwrap_or_default();
            let is_of_elements = OF_ELEMENTS.contains(&leaf);
            if is_of_elements && !tensor.dtype.is_float() {
                let reason = format!("`{path}`: `{leaf}` is in {:?}", tensor.dtype);
                return Err(unreadable(reason));
            }
            let fits = if is_of_elements {
                tensor.shape == *shape
            } else {
                let mut sizes = tensor.shape.iter().zip(shape.iter());
                let fits = sizes.all(|(found, expected)| *found == 1 || found == expected);
                fits || tensor.shape.num_dims() != rank
            };
            if !fits {
                return Err(FusedError::RecordShape {
                    path: path.to_string(),
                    state: self.name_in_state(&tensor.name).to_string(),
                    expected: shape.to_vec(),
                    found: tensor.shape.to_vec(),
                });
            }
        }
        for (name, scalar) in &self.scalars {
            let name = self.name_in_state(name);
            let Some(expected) = expected(name, shape) else {
                continue;
            };
            let found = usize::try_from(*scalar).unwrap_or_default();
            if found != expected {
                return Err(FusedError::RecordShape {
                    path: path.to_string(),
                    state: name.to_string(),
                    expected: shape.to_vec(),
                    found: vec![found],
                });
            }
        }
        Ok(())
    }

    /// Refuses a state of which `empty`, the optimizer without a state, can't load everything: Burn
    /// starts such a parameter anew.
    fn check_loads(self, empty: &ModuleOptimizer) -> Result<(), FusedError> {
        let names = |state: &Self| -> Vec<String> {
            let tensors = state.tensors.iter().map(|tensor| &tensor.name);
            let names = tensors.chain(state.scalars.keys());
            let names = names.map(|name| state.name_in_state(name).to_string());
            names
                .filter(|name| name != RANK && !stock_can_ignore(name))
                .collect()
        };
        let mut writer = Writer::new(self.tensors.clone());
        for (name, scalar) in &self.scalars {
            writer = writer.with_scalar(name, *scalar);
        }
        if let Some(path) = &self.path {
            writer = writer.with_metadata(&self.id, path);
        }
        let bytes = writer.into_bytes().map_err(unreadable)?;
        let record = OptimizerRecord::from_bytes(bytes).map_err(unreadable)?;
        // An optimizer makes tensors of what it finds, and a damaged record has others than it expects.
        let loaded = caught(|| empty.clone().load_record(record));
        let loaded = loaded.map_err(|reason| {
            let path = self.path.as_ref().unwrap_or(&self.id);
            unreadable(format!("the state of `{path}`: {reason}"))
        })?;
        let loaded = match names(&self).iter().any(|name| is_compact(name)) {
            true => compact_records(|| loaded.to_record()),
            false => loaded.to_record(),
        };
        let loaded = states(loaded.into_bytes().map_err(unreadable)?)?;
        let loaded = loaded.values().flat_map(names).collect::<Vec<_>>();
        match names(&self).into_iter().find(|name| !loaded.contains(name)) {
            Some(state) => Err(FusedError::RecordOfAnotherOptimizer {
                path: self.path.unwrap_or(self.id),
                state,
            }),
            None => Ok(()),
        }
    }

    /// `moment_1` of `7.moment_1`.
    fn name_in_state<'a>(&self, name: &'a str) -> &'a str {
        let name = name.strip_prefix(&self.id).unwrap_or(name);
        name.trim_start_matches('.')
    }
}

/// The float parameters of a model.
#[derive(Default)]
struct Parameters {
    names: Vec<String>,
    found: HashMap<ParamId, Parameter>,
}

struct Parameter {
    path: String,
    shape: Shape,
    #[cfg(feature = "train")]
    in_training: bool,
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // In fused form, too: a placeholder has the shape of its value.
        let parameter = Parameter {
            path: self.names.join("."),
            shape: param.lazy_shape(),
            // Looking at a lazy one would draw its values.
            #[cfg(feature = "train")]
            in_training: param.is_initialized() && param.is_require_grad(),
        };
        self.found.insert(param.id, parameter);
    }
}

fn unreadable(reason: impl ToString) -> FusedError {
    let reason = reason.to_string();
    FusedError::UnreadableRecord { reason }
}
