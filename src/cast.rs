use burn::module::Module;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::device::check_has;
use crate::error::FusedError;
use crate::parameters::{exchange, running_statistics};
use crate::tap::lift;

/// `model` with its float parameters in another type, one after the other: there is never more than one of them in
/// both. Integers, booleans, the running statistics of normalization layers and what is quantized are left alone.
///
/// Burn's `BatchNorm` can't compute in another type than that of its statistics: cast the layers beside it
/// (`model.layer = cast(model.layer, ..)`), and the activations on the way.
///
/// A model that has just been made is created in that type: its parameters are drawn when they are first looked at.
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
/// [`FusedError::DeviceUnavailable`] if it is not there.
pub fn cast<M: Module>(model: M, dtype: FloatDType) -> Result<M, FusedError> {
    check_devices(&model, dtype)?;
    let statistics = running_statistics(&model);
    Ok(exchange(
        model,
        |param| !statistics.contains(&param.id()),
        |_, value| leaf_in(value.untyped(), dtype).into(),
    ))
}

/// Refuses a type in which a device of `model` can't compute.
pub(crate) fn check_devices<M: Module>(model: &M, dtype: FloatDType) -> Result<(), FusedError> {
    let mut devices = model.devices().into_iter();
    devices.try_for_each(|device| check_has(&device, dtype.into()))
}

/// `value` in another type, unless it is quantized, and a leaf if it was one.
pub(crate) fn leaf_in<const D: usize>(value: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if value.dtype() == dtype.into() || matches!(value.dtype(), DType::QFloat(_)) {
        return value;
    }
    leaf(value, |value| value.cast(dtype))
}

/// What `make` makes of `value`, outside of autodiff, and a leaf if that was one.
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
