#![allow(deprecated)] // Burn 0.22 still ships ndarray.

#[cfg(feature = "ndarray")]
use burn::backend::ndarray::NdArrayTensor;
#[cfg(any(feature = "flex", feature = "ndarray"))]
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::Tensor;

/// Returns address and size in bytes of the memory of `tensor`, if the backend exposes it.
pub(super) fn buffer<const D: usize>(tensor: &Tensor<D>) -> Option<(usize, usize)> {
    #[allow(unreachable_patterns)] // What is there depends on the backends that are built.
    match tensor.clone().inner().into_dispatch().kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => {
            let bytes = tensor.bytes();
            Some((bytes.as_ptr() as usize, bytes.len()))
        }
        #[cfg(feature = "ndarray")]
        DispatchTensorKind::NdArray(BackendTensor::Float(tensor)) => ndarray(&tensor),
        _ => None,
    }
}

#[cfg(feature = "ndarray")]
fn ndarray(tensor: &NdArrayTensor) -> Option<(usize, usize)> {
    match tensor {
        NdArrayTensor::F32(storage) => {
            let view = storage.view();
            Some((view.as_ptr() as usize, size_of::<f32>() * view.len()))
        }
        NdArrayTensor::F64(storage) => {
            let view = storage.view();
            Some((view.as_ptr() as usize, size_of::<f64>() * view.len()))
        }
        _ => None,
    }
}
