//! Shared functions of the operations on whole tensors.

use burn::tensor::{DType, Tensor};

/// Returns the type in which tensors of `dtype` are computed with: half types in f32.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Sums over all dimensions but the last.
pub(crate) fn sum_of_rows<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let row = x.dims()[D - 1];
    let dims: Vec<_> = (0..D - 1).collect();
    x.sum_dims(&dims).reshape([row])
}
