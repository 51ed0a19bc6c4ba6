//! The tap: an identity operation whose backward step delivers the complete gradient of its input to a
//! [`GradientSink`] instead of the graph.
//!
//! # Invariants
//!
//! - A graph is locked while its backward steps run: a sink must not touch a tensor of that graph.
//! - Each tap has its own leaf, because a shared leaf would join graphs that are locked separately.
//! - Code outside of a pass that lifts tensors must collect them ([`collect_graph_if_due`]): autodiff keeps
//!   unreachable nodes until the next backward pass.

#![allow(deprecated)] // `NdArray`: Burn 0.22 still ships it, and its users train on it.

mod clock;
mod graph_gc;
mod on_backward;

use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use backburn_base::primitive;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchDevice, DispatchKindConversion,
    DispatchTensor, DispatchTensorKind, backend_extension,
};
use burn::tensor::{Device, Tensor};

pub(crate) use clock::{Clock, Clocks, Position};
pub(crate) use graph_gc::{GraphGc, collect_graph_if_due};
pub(crate) use on_backward::on_backward;

/// The receiver of the complete gradient of a tapped value.
pub(crate) trait GradientSink: Send + Sync {
    /// Receives the gradient, once per backward pass, when every use of the tapped value has contributed. Returns the gradients
    /// that the backward pass continues with.
    ///
    /// The autodiff graph is locked during the call: the sink must not touch a tensor of it.
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients;
}

/// Gradients that a sink passes on, to the parents of its tap or to another node. A parent without one gets no gradient.
#[derive(Debug, Default)]
pub(crate) struct PassedGradients {
    /// Gradient of the value, if the value is tracked.
    pub(crate) value: Option<DispatchTensor>,
    /// Gradient of the anchor.
    pub(crate) anchor: Option<DispatchTensor>,
    /// Another node, and the tensor that the backward pass leaves as its gradient, on the backend of the tap.
    pub(crate) other: Option<(NodeId, DispatchTensor)>,
}

/// The state of a tap between the forward and the backward pass.
#[derive(Clone)]
pub(crate) struct Delivery(pub(crate) Arc<dyn GradientSink>);

impl Debug for Delivery {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delivery")
    }
}

/// The tap as a backend operation: the identity, and under autodiff a node that delivers its gradient.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Remote: cfg(feature = "remote"),
    Autodiff
)]
pub(crate) trait TapBackend: Backend {
    /// Returns `value`. `anchor` determines the depth on the tape (see [`Clock`]). Both receive the gradients that
    /// the sink returns.
    fn tap(
        value: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        delivery: Delivery,
    ) -> FloatTensor<Self> {
        let _ = (anchor, delivery);
        value
    }
}

#[cfg(feature = "cubecl")]
impl TapBackend for burn::backend::Cube {}
#[cfg(feature = "flex")]
impl TapBackend for burn::backend::Flex {}
#[cfg(feature = "ndarray")]
impl TapBackend for burn::backend::NdArray {}
#[cfg(feature = "remote")]
impl TapBackend for burn::backend::Remote {}

impl<B, C> TapBackend for Autodiff<B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<B>,
{
    fn tap(
        value: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        delivery: Delivery,
    ) -> FloatTensor<Self> {
        let (value, leaf) = value.into_parts();
        let prepared = Tap
            .prepare::<C>([leaf, anchor.node()])
            .compute_bound()
            .stateful();

        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(delivery, value),
            OpsKind::UnTracked(prepared) => prepared.finish(value),
        }
    }
}

#[derive(Debug)]
struct Tap;

impl<B> Backward<B, 2> for Tap
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Delivery;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        // The tap is not a leaf, so `consume` removes the gradient from the container and the sink
        // holds the only handle. No gradient is registered for the leaf behind the tap.
        let gradient = gradients.consume::<B>(&ops.node);
        let Delivery(sink) = ops.state;
        let gradient = DispatchTensor::from_backend(BackendTensor::Float(gradient));
        let PassedGradients {
            value,
            anchor,
            other,
        } = sink.receive(gradient);
        for (parent, gradient) in ops.parents.into_iter().zip([value, anchor]) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, primitive(gradient));
            }
        }
        if let Some((node, gradient)) = other {
            gradients.register::<B>(node, primitive(gradient));
        }
    }
}

/// Taps `value`: its complete gradient is delivered to `sink`. Autodiff must track `value` or `anchor`. Both receive
/// the gradients that the sink returns.
pub(crate) fn tap<const D: usize>(
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

/// Returns the number of the next operation of autodiff, on any thread. Each call takes one, so the numbers differ.
pub(crate) fn next_operation() -> u64 {
    NodeId::new().value
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
