use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use backburn_base::{host, list};
use burn::module::{Module, Param, ParamId};
use burn::store::{ApplyResult, ModuleSnapshot, ModuleStore};
use burn::tensor::{DType, FloatDType, Tensor};

use super::cast::{check_devices, leaf_in};
use super::loading::{Loading, TakeOver, empty};
use crate::error::FusedError;
use crate::parameters::running_statistics;
use crate::quantized::{AdaptedBase, QuantizedLora, is_shape_stub};

/// An error in loading weights from a file.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A device of the model can't compute in the requested type.
    #[error(transparent)]
    Device(#[from] FusedError),
    /// The file can't be read, or does not fit the model.
    #[error("the weights in {path} can't be loaded: {reason}", path = path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// The error of Burn's store, with the names of tensors.
        reason: String,
    },
}

backburn_base::debug_prints_message!(LoadError);

/// Loads the weights of a safetensors or PyTorch file into `model`, in `dtype`.
///
/// Tensors are transferred to the model's device one after the other. If the file is in `dtype`, the peak is the loaded
/// model and one tensor. (Burn's stores briefly hold that tensor twice, or three times if it must be transposed.) With
/// the feature `flex` the file may be in a type that the device does not support. Lazy parameters of a new model are
/// not initialized. Running statistics of normalization layers keep their types.
///
/// `store` opens the file. Burn's [`SafetensorsStore`](burn::store::SafetensorsStore) or [`PytorchStore`](burn::store::PytorchStore) (Burn's
/// features `safetensors` and `pytorch`) can map names and filter weights; their own `apply_to` keeps the types of the file.
///
/// Parameters that are not in the file (if the store has `allow_partial`) keep their values, in `dtype`, and are `missing` in the returned
/// [`ApplyResult`]. For a model in several files, a parameter is missing if it is `missing` in all results. Tensors of the file that the
/// model does not have are `unused`, which is not an error.
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
/// [`LoadError`]: a tensor is missing or of another shape, the file can't be read, or a device can't compute in
/// `dtype`. The model is consumed. As in Burn's own loading, two cases are errors: a linear layer in column order that
/// is already initialized (unless it is square), and a model with adapters that the file does not contain. Load first,
/// then apply LoRA.
///
/// # Panics
///
/// Burn's stores abort the process on a panic while a model is mapped, for example if this is called with a model in the closure of
/// a fused step.
pub fn load_from_store<M: Module, S: ModuleStore>(
    model: M,
    path: impl AsRef<Path>,
    store: impl FnOnce(PathBuf) -> S,
    dtype: FloatDType,
) -> Result<(M, ApplyResult), LoadError> {
    let (loaded, applied) = load_into(model, path.as_ref(), store, dtype, None)?;
    Ok((loaded.module, applied))
}

/// Loads weights as [`load_from_store`] does, and quantizes each weight that `lora` adapts as soon as it is loaded: at
/// most one weight exists in floats. Then the model is frozen and receives its adapters, as if `lora` were applied to
/// the loaded model.
///
/// For a model in several files, each call quantizes and adapts the weights in its file, and skips those that are already adapted.
///
/// ```
/// use backburn::{BaseFormat, QuantizedLora, load_quantized_from_store};
/// use burn::module::Lora;
/// use burn::nn::LinearConfig;
/// use burn::store::{ModuleSnapshot, SafetensorsStore};
/// use burn::tensor::{Device, FloatDType};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let device = Device::flex().autodiff();
/// # LinearConfig::new(64, 64).init(&device).save_into(&mut SafetensorsStore::from_file(&path))?;
/// let model = LinearConfig::new(64, 64).init(&device);
/// let lora = QuantizedLora::new(Lora::new(4, 8.0), BaseFormat::Bits4);
/// let (model, _) = load_quantized_from_store(model, &path, SafetensorsStore::from_file, FloatDType::F32, lora)?;
/// # assert_eq!(model.weight.val().dims(), [64, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Returns the errors of [`load_from_store`], one if a weight to quantize has a value that is not finite or an adapter already, and one
/// if `lora` adapts no matrix of the model.
pub fn load_quantized_from_store<M: Module, S: ModuleStore>(
    model: M,
    path: impl AsRef<Path>,
    store: impl FnOnce(PathBuf) -> S,
    dtype: FloatDType,
    lora: QuantizedLora,
) -> Result<(M, ApplyResult), LoadError> {
    let base = AdaptedBase::new(lora, dtype);
    let (loaded, applied) = load_into(model, path.as_ref(), store, dtype, Some(base))?;
    let base = loaded
        .takes
        .base
        .expect("the base was passed to `load_into`");
    Ok((loaded.module.apply_reparameterization(base), applied))
}

fn load_into<M: Module, S: ModuleStore>(
    model: M,
    path: &Path,
    store: impl FnOnce(PathBuf) -> S,
    dtype: FloatDType,
    base: Option<AdaptedBase>,
) -> Result<(Loading<M, Cast>, ApplyResult), LoadError> {
    check_devices(&model, dtype)?;
    let takes = Cast {
        dtype,
        statistics: running_statistics(&model),
        base,
        quantization_errors: Vec::new(),
    };
    let module = model;
    let mut loading = Loading { module, takes };
    let unloadable = |reason| LoadError::Store {
        path: path.to_path_buf(),
        reason,
    };
    if let Some(reason) = no_weights(path) {
        return Err(unloadable(reason.to_string()));
    }
    if let Some(base) = &loading.takes.base {
        base.check_group(&list(&loading.module))
            .map_err(&unloadable)?;
    }
    let applied = loading
        .load_from(&mut store(path.to_path_buf()))
        .map_err(|error| unloadable(error.to_string()))?;
    if !applied.errors.is_empty() {
        // A store without validation returns `Ok` with errors.
        return Err(unloadable(format!("{:?}", applied.errors)));
    }
    if !loading.takes.quantization_errors.is_empty() {
        return Err(unloadable(loading.takes.quantization_errors.join("; ")));
    }
    if let Some(base) = &loading.takes.base
        && let Some(adapted) = base.adapted_before(&list(&loading.module))
    {
        return Err(unloadable(format!(
            "parameter `{}` already has an adapter, and can have only one: load into a model without adapters",
            adapted.path
        )));
    }
    Ok((loading, applied))
}

/// Detects files that are often mistaken for weights. Returns the cause, and what to do.
fn no_weights(path: &Path) -> Option<&'static str> {
    if path.to_string_lossy().ends_with(".index.json") {
        return Some(
            "it is the index of a model in several files: load each file in its `weight_map`, with `allow_partial(true)`",
        );
    }
    let mut head = [0; 19];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut head))
        .ok()?;
    match head.to_ascii_lowercase().trim_ascii_start() {
        b"version https://git" => {
            Some("it is a Git LFS pointer instead of the file: run `git lfs pull`")
        }
        head if head.starts_with(b"<!doctype html") || head.starts_with(b"<html") => {
            Some("it is an HTML page, not the file that it links to: download the file itself")
        }
        _ => None,
    }
}

/// A loader that casts each parameter on the host as soon as it is loaded.
#[derive(Clone, Debug)]
struct Cast {
    dtype: FloatDType,
    /// Parameters that keep their type.
    statistics: HashSet<ParamId>,
    /// The selection of weights to quantize.
    base: Option<AdaptedBase>,
    /// Errors of weights that could not be quantized.
    quantization_errors: Vec<String>,
}

impl TakeOver for Cast {
    fn take_over<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
        load: impl FnOnce(Param<Tensor<D>>) -> Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        let dtype = if self.statistics.contains(&param.id) {
            param.base().dtype().into()
        } else {
            self.dtype
        };
        let device = param.lazy_device();
        // Loaded on the host, because `device` may not support the type of the file.
        let loaded = load(empty(param.id, param.lazy_shape(), host(&device)));
        if loaded.is_initialized() {
            if param.is_initialized() && is_shape_stub(param.base().dtype()) {
                self.quantization_errors.push(format!(
                    "parameter `{path}` is quantized already: load into a model without adapters on it"
                ));
                return param;
            }
            let id = loaded.id;
            let mut value = loaded.into_value();
            // A panic in the conversion would abort the process.
            if let DType::QFloat(_) = value.dtype() {
                value = value.dequantize();
            }
            let data = value.into_data();
            let dtype = DType::from(dtype);
            let value = Tensor::from_data(data.convert_dtype(dtype), (&device, dtype));
            let param = param.transform_for_load(value, id);
            let Some(base) = &mut self.base else {
                return param;
            };
            // A panic here would abort the process.
            return base
                .quantize(path, param)
                .unwrap_or_else(|(param, reason)| {
                    self.quantization_errors.push(reason);
                    param
                });
        }
        // The parameter may be in the next file.
        if !param.is_initialized() {
            return param.init_mapper(move |value| value.cast(dtype));
        }
        param.map(|value| leaf_in(value, dtype))
    }
}
