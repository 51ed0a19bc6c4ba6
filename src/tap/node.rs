#![allow(deprecated)] // Burn 0.22 still ships ndarray.

use burn::backend::autodiff::NodeId;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::Tensor;

/// The node of autodiff that `tensor` is, which its clones share and no other tensor has, whatever its value; none
/// without autodiff.
pub(crate) fn node<const D: usize>(tensor: &Tensor<D>) -> Option<NodeId> {
    let DispatchTensorKind::Autodiff(kind) = tensor.clone().into_dispatch().kind else {
        return None;
    };
    #[allow(unreachable_patterns)] // What is there depends on the build.
    match *kind {
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        #[cfg(feature = "ndarray")]
        DispatchTensorKind::NdArray(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        #[cfg(feature = "remote")]
        DispatchTensorKind::Remote(BackendTensor::Autodiff(tensor)) => Some(tensor.id()),
        _ => None,
    }
}
