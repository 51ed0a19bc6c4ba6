use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::caught::caught;
use crate::moved;

/// `tensor`, without autodiff, on `device` and in `dtype`, or what a device says: the one way of weights and gradients
/// between where they rest and where they are computed with.
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
        // In the smaller of both types, if both sides have it.
        let cast_first = of != dtype
            && from != *device
            && match dtype.size() < of.size() {
                true => from.supports_dtype(dtype),
                false => !device.supports_dtype(of),
            };
        match cast_first {
            true => moved(in_type(tensor, dtype), device),
            false => in_type(moved(tensor, device), dtype),
        }
    })
}

/// `tensor` in this float type.
pub fn in_type<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(FloatDType::from(dtype)),
    }
}
