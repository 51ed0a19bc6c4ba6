#![allow(deprecated)] // `NdArray`: Burn 0.22 still ships it, and its users train on it.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, DispatchKindConversion, DispatchTensor, backend_extension,
};

/// Where a tap delivers the finished gradient of its value.
pub(crate) trait GradientSink: Send + Sync {
    /// Called once per backward pass, when every use of the tapped value has contributed. Returns what
    /// goes on from there.
    ///
    /// The autodiff graph is locked during the call: the receiver must not touch a tensor of it.
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients;
}

/// The gradients that a sink passes on; without one, a tensor gets no gradient.
#[derive(Debug, Default)]
pub(crate) struct PassedGradients {
    /// Of the value, if that was tracked itself.
    pub(crate) value: Option<DispatchTensor>,
    /// Of the tensor beside the value.
    pub(crate) anchor: Option<DispatchTensor>,
}

/// What a tap carries from the forward to the backward pass.
#[derive(Clone)]
pub(crate) struct Delivery(pub(crate) Arc<dyn GradientSink>);

impl Debug for Delivery {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delivery")
    }
}

/// The tap as an operation of a backend: the identity, and under autodiff the place where a
/// finished gradient leaves the graph.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Remote: cfg(feature = "remote"),
    Autodiff
)]
pub(crate) trait TapBackend: Backend {
    /// Returns `value`. What is `beside` it lends its depth on the tape (see [`Clock`](super::Clock)). Both
    /// get the gradients that the sink passes on.
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
        // The tap is no leaf, so consuming removes the gradient from the container: from here on
        // the sink holds the only handle, and nothing is registered for the leaf behind the tap.
        let gradient = gradients.consume::<B>(&ops.node);
        let Delivery(sink) = ops.state;
        let gradient = DispatchTensor::from_backend(BackendTensor::Float(gradient));
        let PassedGradients { value, anchor } = sink.receive(gradient);
        for (parent, gradient) in ops.parents.into_iter().zip([value, anchor]) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, primitive(gradient));
            }
        }
    }
}

/// The tensor as the backend `B` has it, which it is of.
pub(crate) fn primitive<B>(tensor: DispatchTensor) -> FloatTensor<B>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = DispatchTensor::try_into_backend(tensor);
    let tensor = tensor.expect("a tensor stays on its backend");
    let BackendTensor::Float(tensor) = tensor else {
        unreachable!("a float tensor stays one")
    };
    tensor
}
