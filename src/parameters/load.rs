//! Modules that something is loaded into.

use std::fmt::Debug;

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{Bool, Device, Int, Shape, Tensor};

use super::around::as_inner;
use crate::device::in_memory;

/// A module whose parameters are taken over one after the other, as they are loaded. Records and stores load into any module, and
/// map it: so this is one that passes on all else.
#[derive(Clone, Debug)]
pub(crate) struct Loading<M, T> {
    pub(crate) module: M,
    pub(crate) takes: T,
}

/// How a parameter is taken over.
pub(crate) trait TakeOver: Clone + Debug + Send {
    /// The parameter at `path` with what `load` makes of one [without a value](empty), or as it is, if that has got none.
    fn take_over<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
        load: impl FnOnce(Param<Tensor<D>>) -> Param<Tensor<D>>,
    ) -> Param<Tensor<D>>;
}

/// A parameter of this id and shape, without a value.
pub(crate) fn empty<const D: usize>(id: ParamId, shape: Shape, device: Device) -> Param<Tensor<D>> {
    let of = shape.clone();
    let zeros = move |device: &Device, _: bool| Tensor::zeros(of, device);
    Param::uninitialized(id, zeros, device, false, shape)
}

/// `module` with the values and ids of `record`, in the types that it has. Nothing of it is in a file any more: Burn reads
/// what is in one when somebody looks, and another may be in its place by then.
///
/// Burn compares the shape of a recorded parameter with that of one that has a value as it is kept, and a linear layer in
/// columns keeps another than it records. So the record is loaded into parameters without values.
///
/// # Errors
///
/// If a parameter is missing, left over, or of another shape or type.
pub(crate) fn load_same<M: Module>(module: M, record: ModuleRecord) -> Result<M, RecordError> {
    let takes = Same(Vec::new());
    let loading = Loading { module, takes };
    let loaded = loading.try_load_record(record.allow_partial(false).validate(true))?;
    match loaded.takes.0.is_empty() {
        true => Ok(loaded.module),
        false => Err(RecordError::Validation(loaded.takes.0.join("; "))),
    }
}

/// Takes over what is of the same type, and says what is of another.
#[derive(Clone, Debug)]
struct Same(Vec<String>);

impl TakeOver for Same {
    fn take_over<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
        load: impl FnOnce(Param<Tensor<D>>) -> Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        // Of the shape that is recorded.
        let shape = param.transform_for_save().lazy_shape();
        let loaded = load(empty(param.id, shape, param.lazy_device()));
        if !loaded.is_initialized() {
            return param;
        }
        let (expected, found) = (param.base().dtype(), loaded.base().dtype());
        if found != expected {
            let mismatch = format!("{path}: expected {expected:?} but record has {found:?}");
            self.0.push(mismatch);
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

/// Maps parameters as `mapper` does.
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
