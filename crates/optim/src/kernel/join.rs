//! The trained weights, joined from bf16 and their residual on a CubeCL device.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

use super::super::format::{Residual, WeightFormat};

#[backend_extension(Cube: cfg(feature = "cubecl"), Fusion: cfg(feature = "fusion"))]
pub(crate) trait Join: Backend {
    /// Returns the trained weights, in f32.
    #[fusion(dtype = burn::tensor::DType::F32, shape = weight.clone())]
    fn join(
        weight: FloatTensor<Self>,
        low: IntTensor<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self>;
}

/// Returns the trained weights, in f32.
pub(super) fn joined<const D: usize>(value: Tensor<D>, low: Residual) -> Tensor<D> {
    let (value, words) = (value.into_dispatch(), low.words.into_dispatch());
    Tensor::from_dispatch(Dispatch::join(value, words, low.format))
}
