//! The tap: an identity operation whose backward step delivers the complete gradient of its input to a
//! [`GradientSink`] instead of the graph.
//!
//! # Invariants
//!
//! - A graph is locked while its backward steps run: a sink must not touch a tensor of that graph.
//! - Each tap has its own leaf, because a shared leaf would join graphs that are locked separately.
//! - Code outside of a pass that lifts tensors must collect them ([`collect_graph_if_due`]): autodiff keeps
//!   unreachable nodes until the next backward pass.

mod clock;
mod extension;
mod graph_gc;

use std::sync::Arc;
use std::time::Duration;

use burn::backend::autodiff::NodeId;
use burn::backend::{BackendTensor, Dispatch, DispatchDevice, DispatchTensor, DispatchTensorKind};
use burn::tensor::{Device, Tensor};

pub(crate) use backburn_base::lift;
pub(crate) use clock::{Clock, Clocks};
pub(crate) use extension::{GradientSink, PassedGradients, primitive};
pub(crate) use graph_gc::{GraphGc, collect_graph_if_due};

use extension::{Delivery, TapBackend};

/// Taps `value`: its complete gradient is delivered to `sink`. Autodiff must track `value` or `anchor`. Both receive
/// the gradients that the sink returns.
pub(crate) fn join<const D: usize>(
    value: Tensor<D>,
    anchor: DispatchTensor,
    sink: Arc<dyn GradientSink>,
) -> Tensor<D> {
    let tapped = <Dispatch as TapBackend>::tap(value.into_dispatch(), anchor, Delivery(sink));
    Tensor::from_dispatch(tapped)
}

/// Frees unreachable nodes of the autodiff graph, with the tensors that they saved. Autodiff frees them only in a backward
/// pass, so this runs one over a single node.
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

/// Returns the number of collections on this thread.
#[cfg(all(test, feature = "flex"))]
fn collections() -> usize {
    COLLECTIONS.get()
}

/// Returns `true` if autodiff accepts operations. It does not while a thread waits for a locked graph to join it with another.
pub(crate) fn is_free(device: &Device) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    let device = device.clone();
    std::thread::spawn(move || {
        collect_graph(&device);
        let _ = sender.send(());
    });
    receiver.recv_timeout(Duration::from_secs(5)).is_ok()
}

/// Returns `true` if this build of the crate implements the tap for the backend of `device`.
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

/// Returns the autodiff node of `tensor`, which its clones share; `None` without autodiff.
pub(crate) fn node<const D: usize>(tensor: &Tensor<D>) -> Option<NodeId> {
    let DispatchTensorKind::Autodiff(kind) = tensor.clone().into_dispatch().kind else {
        return None;
    };
    #[allow(unreachable_patterns, deprecated)]
    // The backends depend on the features; Burn 0.22 still ships ndarray.
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
