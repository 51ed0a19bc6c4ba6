//! Wrapper modules that load parameters one after the other.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::path::Path;

use backburn_base::{in_memory, with_value};
use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{Bool, DType, Device, Int, Shape, Tensor};

use crate::error::listed;
use crate::parameters::as_inner;
use crate::quantized::is_shape_stub;

/// A module whose parameters are loaded one after the other. Records and stores load into any module by mapping it, so
/// this module forwards everything else.
#[derive(Clone, Debug)]
pub(crate) struct Loading<M, T> {
    pub(crate) module: M,
    pub(crate) takes: T,
}

/// A conversion of loaded parameters.
pub(crate) trait TakeOver: Clone + Debug + Send {
    /// Returns the parameter at `path` with the value that `load` puts into one [without a value](empty); unchanged if
    /// there is none.
    fn take_over<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
        load: impl FnOnce(Param<Tensor<D>>) -> Param<Tensor<D>>,
    ) -> Param<Tensor<D>>;
}

/// Returns a parameter of this id and shape, without a value.
pub(crate) fn empty<const D: usize>(id: ParamId, shape: Shape, device: Device) -> Param<Tensor<D>> {
    let of = shape.clone();
    let zeros = move |device: &Device, _: bool| Tensor::zeros(of, device);
    Param::uninitialized(id, zeros, device, false, shape)
}

/// Returns `module` with the values and ids in `file`, in the types of the file. If `trained` is given, the file contains only
/// these parameters, and the others keep their values. All values are read before the return, because the file may be replaced.
///
/// Burn compares the recorded shape with the shape in memory, and a linear layer in column order is recorded in
/// another shape. So the record is loaded into parameters without values.
///
/// # Errors
///
/// If a parameter is missing, left over, or of another shape or type.
pub(crate) fn load_same<M: Module>(
    module: M,
    file: &Path,
    trained: Option<&HashSet<ParamId>>,
) -> Result<M, RecordError> {
    let tensors = burn_pack::Reader::from_file(file)?.into_tensors()?;
    check_same(&module, &tensors, trained)?;
    drop(tensors);
    let record = ModuleRecord::load(file)?.allow_partial(trained.is_some());
    let takes = Same;
    let loaded = Loading { module, takes }.try_load_record(record.validate(true))?;
    Ok(loaded.module)
}

/// Returns `true` if loading a tensor of type `a` as type `b` keeps its values. The layout of quantized values depends on the device. A
/// shape stub has no values.
fn keeps_values(a: DType, b: DType) -> bool {
    match (a, b) {
        (DType::QFloat(a), DType::QFloat(b)) if a.with_store(b.store) == b => true,
        _ => a == b || is_shape_stub(a) && is_shape_stub(b),
    }
}

/// Returns an error unless `tensors` are the parameters of `module`, or its `trained` parameters.
fn check_same<M: Module>(
    module: &M,
    tensors: &[burn_pack::Tensor],
    trained: Option<&HashSet<ParamId>>,
) -> Result<(), RecordError> {
    let mut recorded = Recorded::default();
    module.visit(&mut recorded);
    let mut found: BTreeMap<_, _> = tensors.iter().map(|it| (&*it.name, it)).collect();
    let (mut missing, mut different) = (Vec::new(), Vec::new());
    for (path, id, shape, dtype) in recorded.tensors {
        if trained.is_some_and(|trained| !trained.contains(&id)) {
            continue;
        }
        match found.remove(&*path) {
            None => missing.push(format!("`{path}`")),
            Some(tensor) if tensor.shape != shape => different.push(format!(
                "`{path}` ({:?} in place of {:?})",
                tensor.shape.to_vec(),
                shape.to_vec()
            )),
            Some(tensor) => {
                if let Some(dtype) = dtype.filter(|dtype| !keeps_values(tensor.dtype, *dtype)) {
                    let found = tensor.dtype;
                    different.push(format!("`{path}` ({found:?} in place of {dtype:?})"));
                }
            }
        }
    }
    let unexpected: Vec<_> = found.keys().map(|path| format!("`{path}`")).collect();
    let differences = [
        ("the file has no", missing),
        ("the model has no", unexpected),
        ("the file has another", different),
    ];
    let differences: Vec<_> = differences
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{what} {}", listed(names.iter())))
        .collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(RecordError::Validation(differences.join("; "))),
    }
}

/// The tensors of a module as they are recorded: path, id, shape, and the type of floats.
#[derive(Default)]
struct Recorded {
    names: Vec<String>,
    tensors: Vec<(String, ParamId, Shape, Option<DType>)>,
}

impl Recorded {
    fn push(&mut self, id: ParamId, shape: Shape, dtype: Option<DType>) {
        self.tensors.push((self.names.join("."), id, shape, dtype));
    }
}

impl ModuleVisitor for Recorded {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let dtype = with_value(param).base().dtype();
        let shape = param.transform_for_save().lazy_shape();
        self.push(param.id, shape, Some(dtype));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.push(param.id, param.transform_for_save().lazy_shape(), None);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.push(param.id, param.transform_for_save().lazy_shape(), None);
    }
}

/// A conversion that returns the recorded value.
#[derive(Clone, Debug)]
struct Same;

impl TakeOver for Same {
    fn take_over<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
        load: impl FnOnce(Param<Tensor<D>>) -> Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        let shape = param.transform_for_save().lazy_shape();
        let loaded = load(empty(param.id, shape, param.lazy_device()));
        if !loaded.is_initialized() {
            return param;
        }
        let id = loaded.id;
        param.transform_for_load(in_memory(loaded.into_value()), id)
    }
}

impl<M: Module, T: TakeOver> Module for Loading<M, T> {
    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        let mut load = Load {
            mapper,
            names: Vec::new(),
            takes: self.takes,
        };
        Self {
            module: self.module.map(&mut load),
            takes: load.takes,
        }
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        self.module.visit(visitor);
    }

    fn fork(self, device: &Device) -> Self {
        let module = self.module.fork(device);
        Self { module, ..self }
    }

    as_inner!(module);
}

/// A mapper that applies `mapper` through the conversion.
struct Load<'a, Mapper, T> {
    mapper: &'a mut Mapper,
    names: Vec<String>,
    takes: T,
}

impl<Mapper: ModuleMapper, T: TakeOver> ModuleMapper for Load<'_, Mapper, T> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.names.push(name.to_string());
        self.mapper.enter_module(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.names.pop();
        self.mapper.exit_module(name, container_type);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let load = |empty| self.mapper.map_float(empty);
        self.takes.take_over(&self.names.join("."), param, load)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let loaded = self.mapper.map_int(param);
        loaded.base().into_data().as_bytes();
        loaded
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let loaded = self.mapper.map_bool(param);
        loaded.base().into_data().as_bytes();
        loaded
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.mapper.map_flag(flag)
    }
}
