use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::device::look;

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
    let loading = Loading {
        module,
        of_other_type: Vec::new(),
    };
    let loaded = loading.try_load_record(record.allow_partial(false).validate(true))?;
    match loaded.of_other_type.is_empty() {
        true => Ok(loaded.module),
        false => Err(RecordError::Validation(loaded.of_other_type.join("; "))),
    }
}

/// A module whose parameters are loaded as they were recorded. Records are loaded into any module, and map it.
#[derive(Clone, Debug)]
struct Loading<M> {
    module: M,
    of_other_type: Vec<String>,
}

impl<M: Module> Loading<M> {
    fn changed(self, change: impl FnOnce(M) -> M) -> Self {
        let module = change(self.module);
        Self { module, ..self }
    }
}

impl<M: Module> Module for Loading<M> {
    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        let mut load = Load {
            mapper,
            names: Vec::new(),
            of_other_type: self.of_other_type,
        };
        let module = self.module.map(&mut load);
        let of_other_type = load.of_other_type;
        Self {
            module,
            of_other_type,
        }
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        self.module.visit(visitor);
    }

    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.module.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.changed(|module| module.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.changed(|module| module.to_device(device))
    }

    fn train(self) -> Self {
        self.changed(M::train)
    }

    fn valid(&self) -> Self {
        self.clone().changed(|module| module.valid())
    }

    fn materialize(self) -> Self {
        self.changed(M::materialize)
    }
}

/// Maps parameters of the shapes that are recorded, as `mapper` does, and takes over what that has loaded.
struct Load<'a, Mapper> {
    mapper: &'a mut Mapper,
    names: Vec<String>,
    of_other_type: Vec<String>,
}

impl<Mapper: ModuleMapper> ModuleMapper for Load<'_, Mapper> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.names.push(name.to_string());
        self.mapper.enter_module(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.names.pop();
        self.mapper.exit_module(name, container_type);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.transform_for_save().lazy_shape();
        let zeros = {
            let shape = shape.clone();
            move |device: &Device, _: bool| Tensor::zeros(shape, device)
        };
        let device = param.lazy_device();
        let empty = Param::uninitialized(param.id, zeros, device, false, shape);
        let loaded = self.mapper.map_float(empty);
        if !loaded.is_initialized() {
            return param;
        }
        look(&loaded.base());
        let (expected, found) = (param.base().dtype(), loaded.base().dtype());
        if found != expected {
            let path = self.names.join(".");
            let mismatch = format!("{path}: expected {expected:?} but record has {found:?}");
            self.of_other_type.push(mismatch);
        }
        let id = loaded.id;
        param.transform_for_load(loaded.into_value(), id)
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
