use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::caught::caught;
use crate::copy_to_device;

/// Transfers `tensor`, without autodiff, to `device` and `dtype`, or returns the error of a device. All weights and gradients
/// move between storage and computation by this function.
pub fn transferred<const D: usize>(
    tensor: Tensor<D>,
    device: &Device,
    dtype: DType,
) -> Result<Tensor<D>, String> {
    let (from, of) = (tensor.device(), tensor.dtype());
    if from == *device && of == dtype {
        return Ok(tensor);
    }
    caught(|| {
        // Transfer in the smaller of both types, if both sides support it.
        let cast_first = of != dtype
            && from != *device
            && match dtype.size() < of.size() {
                true => from.supports_dtype(dtype),
                false => !device.supports_dtype(of),
            };
        match cast_first {
            true => copy_to_device(in_type(tensor, dtype), device),
            false => in_type(copy_to_device(tensor, device), dtype),
        }
    })
}

/// Casts `tensor` to this float type.
pub fn in_type<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(FloatDType::from(dtype)),
    }
}
