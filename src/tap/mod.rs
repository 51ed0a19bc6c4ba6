//! The autodiff decorator: an identity operation whose backward step takes the finished gradient
//! out of the graph.

mod clock;
mod extension;
mod graph_gc;

use std::sync::Arc;
use std::time::Duration;

use burn::backend::autodiff::NodeId;
use burn::backend::{BackendTensor, Dispatch, DispatchDevice, DispatchTensor, DispatchTensorKind};
use burn::tensor::{Device, Tensor};

pub(crate) use backburn_base::lift;
pub(crate) use clock::Clocks;
pub(crate) use extension::{GradientSink, PassedGradients, primitive};
pub(crate) use graph_gc::{GraphGc, collect_graph_if_due};

use extension::{Delivery, TapBackend};

/// Taps `value` beside another tensor, one of which is tracked: the finished gradient is delivered to `sink`,
/// and what is tracked gets what the sink passes on.
pub(crate) fn join<const D: usize>(
    value: Tensor<D>,
    anchor: DispatchTensor,
    sink: Arc<dyn GradientSink>,
) -> Tensor<D> {
    let tapped = <Dispatch as TapBackend>::tap(value.into_dispatch(), anchor, Delivery(sink));
    Tensor::from_dispatch(tapped)
}

/// Lets autodiff let go of what nobody holds any more: it keeps its entries of abandoned operations, with
/// what they have saved for their backward steps, until a backward pass, any backward pass, sweeps them up.
pub(crate) fn collect_graph(device: &Device) {
    #[cfg(test)]
    COLLECTIONS.set(COLLECTIONS.get() + 1);
    let leaf = Tensor::from_inner(Tensor::<1>::zeros([1], &device.clone().inner()));
    leaf.require_grad().backward();
}

#[cfg(test)]
thread_local! {
    static COLLECTIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the number of sweeps on this thread.
#[cfg(all(test, feature = "flex"))]
fn collections() -> usize {
    COLLECTIONS.get()
}

/// Whether autodiff takes operations: not while a thread waits for a graph that is locked, to join it with another.
pub(crate) fn is_free(device: &Device) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    let device = device.clone();
    std::thread::spawn(move || {
        collect_graph(&device);
        let _ = sender.send(());
    });
    receiver.recv_timeout(Duration::from_secs(5)).is_ok()
}

/// Whether this build of the crate implements the tap for the backend of `device`.
pub(crate) fn covers(device: &Device) -> bool {
    #[allow(unreachable_patterns)] // Burn may have more backends enabled than this crate, or not.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => true,
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => true,
        #[cfg(feature = "remote")]
        DispatchDevice::Remote(_) => true,
        _ => false,
    }
}

/// The node of autodiff that `tensor` is, which its clones share and no other tensor has, whatever its value; none
/// without autodiff.
pub(crate) fn node<const D: usize>(tensor: &Tensor<D>) -> Option<NodeId> {
    let DispatchTensorKind::Autodiff(kind) = tensor.clone().into_dispatch().kind else {
        return None;
    };
    #[allow(unreachable_patterns, deprecated)]
    // What is there depends on the build; Burn 0.22 still ships ndarray.
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
