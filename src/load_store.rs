use std::collections::HashSet;
use std::path::{Path, PathBuf};

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::{ApplyResult, ModuleSnapshot, ModuleStore};
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor};

use crate::cast::{check_devices, leaf_in};
use crate::device::host;
use crate::error::FusedError;
use crate::parameters::running_statistics;

/// Why weights were not loaded from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A device of the model can't compute in the type that was asked for.
    #[error(transparent)]
    Device(#[from] FusedError),
    /// The file can't be read, or does not fit the model.
    #[error("the weights in {path} can't be loaded: {reason}", path = path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// What Burn's store says, which names the tensors.
        reason: String,
    },
}

/// `model` with the weights of the file at `path`, of safetensors or of PyTorch, each straight on the model's device and in `dtype`, one
/// after the other.
///
/// Beside those loaded before there is never more than one of them. Burn's stores hold that one twice for a moment, in the type of the
/// file (a weight of a linear layer from PyTorch, which is turned, three times): if that is `dtype`, the peak is the loaded model and one tensor.
/// With the feature `flex` the file may be in a type that the device lacks. A model that has just been made draws nothing.
/// The file is opened as `store` says: names are mapped, and weights filtered, by Burn's
/// [`SafetensorsStore`](burn::store::SafetensorsStore) or [`PytorchStore`](burn::store::PytorchStore) (Burn's features `safetensors` and
/// `pytorch`), whose own `apply_to` keeps the types of the file.
/// What the store leaves out (if it is told to allow a part, of several files, say) stays as it is, in `dtype`; the returned
/// [`ApplyResult`] says what that is: of this file, so with several, a parameter is missing if all results say so. Tensors of the file that the model
/// has no place for are `unused` there, and no error. Running statistics of normalization layers keep their type.
///
/// ```
/// use backburn::load_from_store;
/// use burn::nn::LinearConfig;
/// use burn::store::{ModuleSnapshot, SafetensorsStore};
/// use burn::tensor::{DType, Device, FloatDType};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let device = Device::flex().autodiff();
/// # LinearConfig::new(64, 64).init(&device).save_into(&mut SafetensorsStore::from_file(&path))?;
/// let model = LinearConfig::new(64, 64).init(&device);
/// let store = |path| SafetensorsStore::from_file(path).allow_partial(false);
/// let (model, _) = load_from_store(model, &path, store, FloatDType::BF16)?;
/// assert_eq!(model.weight.val().dtype(), DType::BF16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`LoadError`]: a tensor is missing or of another shape, the file can't be read, or a device can't compute in `dtype`. The model is
/// consumed: what was loaded until then is of no use. As Burn's own loading, it refuses a linear layer in columns that holds weights already
/// (unless it is square), and asks for adapters that a file lacks: load first, then apply LoRA.
///
/// # Panics
///
/// Burn's stores end the process if anything panics while a model is mapped: a model in the closure of a fused step, say.
pub fn load_from_store<M, S>(
    model: M,
    path: impl AsRef<Path>,
    store: impl FnOnce(PathBuf) -> S,
    dtype: FloatDType,
) -> Result<(M, ApplyResult), LoadError>
where
    M: Module,
    S: ModuleStore,
{
    check_devices(&model, dtype)?;
    let mut casting = CastOnLoad {
        statistics: running_statistics(&model),
        model,
        dtype,
    };
    let path = path.as_ref().to_path_buf();
    let unloadable = |reason| LoadError::Store {
        path: path.clone(),
        reason,
    };
    let applied = casting
        .load_from(&mut store(path.clone()))
        .map_err(|error| unloadable(error.to_string()))?;
    match applied.errors.is_empty() {
        true => Ok((casting.model, applied)),
        // The store was told not to validate.
        false => Err(unloadable(format!("{:?}", applied.errors))),
    }
}

/// A model whose parameters are cast as soon as they are loaded. Stores load into any module, and map it, one parameter after the other: so it is
/// one that passes on all else.
#[derive(Clone, Debug)]
struct CastOnLoad<M> {
    model: M,
    dtype: FloatDType,
    /// Parameters that keep their type.
    statistics: HashSet<ParamId>,
}

impl<M: Module> CastOnLoad<M> {
    fn changed(self, change: impl FnOnce(M) -> M) -> Self {
        let model = change(self.model);
        Self { model, ..self }
    }
}

impl<M: Module> Module for CastOnLoad<M> {
    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        let (dtype, statistics) = (self.dtype, self.statistics.clone());
        let mut mapper = LoadAndCast {
            mapper,
            dtype,
            statistics,
        };
        self.changed(|model| model.map(&mut mapper))
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        self.model.visit(visitor);
    }

    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.model.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.changed(|model| model.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.changed(|model| model.to_device(device))
    }

    fn train(self) -> Self {
        self.changed(M::train)
    }

    fn valid(&self) -> Self {
        self.clone().changed(|model| model.valid())
    }

    fn materialize(self) -> Self {
        self.changed(M::materialize)
    }
}

/// A parameter like `param` on another device, without a value.
fn empty<const D: usize>(param: &Param<Tensor<D>>, device: Device) -> Param<Tensor<D>> {
    let shape = param.lazy_shape();
    let zeros = {
        let shape = shape.clone();
        move |device: &Device, _: bool| Tensor::zeros(shape, device)
    };
    Param::uninitialized(param.id, zeros, device, false, shape)
}

/// Maps parameters as `mapper` does on the host, and takes over what that has loaded.
struct LoadAndCast<'a, Mapper> {
    mapper: &'a mut Mapper,
    dtype: FloatDType,
    statistics: HashSet<ParamId>,
}

impl<Mapper: ModuleMapper> ModuleMapper for LoadAndCast<'_, Mapper> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.mapper.enter_module(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.mapper.exit_module(name, container_type);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dtype = match self.statistics.contains(&param.id) {
            true => param.base().dtype().into(),
            false => self.dtype,
        };
        let device = param.lazy_device();
        // In the type of the file, which `device` may not have.
        let loaded = self.mapper.map_float(empty(&param, host(&device)));
        if loaded.is_initialized() {
            let id = loaded.id;
            let data = loaded.into_value().into_data();
            let dtype = DType::from(dtype);
            let value = Tensor::from_data(data.convert_dtype(dtype), (&device, dtype));
            return param.transform_for_load(value, id);
        }
        // It was not in the file, and may be in the next.
        if !param.is_initialized() {
            return param.init_mapper(move |value| value.cast(dtype));
        }
        param.map(|value| leaf_in(value, dtype))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.mapper.map_int(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.mapper.map_bool(param)
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.mapper.map_flag(flag)
    }
}
