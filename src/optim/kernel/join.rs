//! The trained weights of low bits on a CubeCL device.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;

use super::super::format::{LowBits, WeightFormat};
use super::cube;

#[backend_extension(Cube: cfg(feature = "cubecl"), Fusion: cfg(feature = "fusion"))]
pub(crate) trait Join: Backend {
    /// The trained weights, in f32.
    #[fusion(dtype = burn::tensor::DType::F32, shape = weight.clone())]
    fn join(
        weight: FloatTensor<Self>,
        low: IntTensor<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self>;
}

impl Join for CubeBackend {
    fn join(
        weight: FloatTensor<Self>,
        low: IntTensor<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self> {
        cube::join(weight, low, format)
    }
}

/// The trained weights, in f32.
pub(super) fn joined<const D: usize>(value: Tensor<D>, low: LowBits) -> Tensor<D> {
    let (value, words) = (value.into_dispatch(), low.words.into_dispatch());
    Tensor::from_dispatch(Dispatch::join(value, words, low.format))
}
