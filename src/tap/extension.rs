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

/// The receiver of the complete gradient of a tapped value.
pub(crate) trait GradientSink: Send + Sync {
    /// Receives the gradient once per backward pass, after all uses of the tapped value have contributed. Returns the
    /// gradients for the parents of the tap.
    ///
    /// The autodiff graph is locked during the call: the sink must not touch a tensor of it.
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients;
}

/// Gradients that a sink passes on to the parents of its tap. A parent without one gets no gradient.
#[derive(Debug, Default)]
pub(crate) struct PassedGradients {
    /// Gradient of the value, if the value is tracked.
    pub(crate) value: Option<DispatchTensor>,
    /// Gradient of the anchor.
    pub(crate) anchor: Option<DispatchTensor>,
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
    /// Returns `value`. `anchor` determines the depth on the tape (see [`Clock`](super::Clock)). Both receive the gradients that
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
        let PassedGradients { value, anchor } = sink.receive(gradient);
        for (parent, gradient) in ops.parents.into_iter().zip([value, anchor]) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, primitive(gradient));
            }
        }
    }
}

/// Returns the tensor as a primitive of its backend `B`.
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
