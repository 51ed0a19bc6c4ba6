use backburn_base::lift;
use burn::module::Module;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::device::check_has;
use crate::error::FusedError;
use crate::parameters::{map_params, running_statistics};

/// Casts the float parameters of `model` to `dtype`, one after the other: at most one parameter exists in both types.
/// Integers, booleans, quantized values and the running statistics of normalization layers keep their types.
///
/// Burn's `BatchNorm` computes only in the type of its statistics: cast the other layers instead
/// (`model.layer = cast(model.layer, ..)`), and cast the activations before and after it.
///
/// Lazy parameters are initialized in their default type and then cast, one after the other. To load a record in another type, load
/// it into a model that was cast, with Burn's [`cast_to_module_dtype`](burn::store::ModuleRecord::cast_to_module_dtype).
///
/// ```
/// use backburn::cast;
/// use burn::nn::LinearConfig;
/// use burn::tensor::{DType, Device, FloatDType};
///
/// let device = Device::flex().autodiff();
/// let model = cast(LinearConfig::new(64, 64).init(&device), FloatDType::BF16)?;
/// assert_eq!(model.weight.val().dtype(), DType::BF16);
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// # Errors
///
/// [`FusedError::FloatTypeNotSupported`] if a device of the model can't compute in `dtype`,
/// [`FusedError::DeviceUnavailable`] if a device does not exist.
pub fn cast<M: Module>(model: M, dtype: FloatDType) -> Result<M, FusedError> {
    check_devices(&model, dtype)?;
    let statistics = running_statistics(&model);
    Ok(map_params(
        model,
        |param| !statistics.contains(&param.id()),
        |_, value| leaf_in(value.0, dtype).into(),
    ))
}

/// Returns an error if a device of `model` can't compute in `dtype`.
pub(crate) fn check_devices<M: Module>(model: &M, dtype: FloatDType) -> Result<(), FusedError> {
    let mut devices = model.devices().into_iter();
    devices.try_for_each(|device| check_has(&device, dtype.into()))
}

/// Casts `value` to `dtype` unless it is quantized. A leaf stays a leaf.
pub(crate) fn leaf_in<const D: usize>(value: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if value.dtype() == dtype.into() || matches!(value.dtype(), DType::QFloat(_)) {
        return value;
    }
    leaf(value, |value| value.cast(dtype))
}

/// Applies `make` to `value` outside of autodiff. A leaf stays a leaf.
pub(crate) fn leaf<const D: usize>(
    value: Tensor<D>,
    make: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    if !value.is_autodiff() {
        return make(value);
    }
    let requires_grad = value.is_require_grad();
    let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
    lift(make(value.inner()), strategy).set_require_grad(requires_grad)
}
