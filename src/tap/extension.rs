#![allow(deprecated)] // `NdArray`: Burn 0.22 still ships it, and its users train on it.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, DispatchKindConversion, DispatchTensor, backend_extension,
};

use super::census::Census;

/// Where a tap delivers the finished gradient of its parameter.
pub(crate) trait GradientSink: Debug + Send + Sync {
    /// Called once per backward pass, when every use of the parameter has contributed.
    ///
    /// The autodiff graph is locked during the call: the receiver must not touch a tensor of it.
    fn receive(&self, gradient: DispatchTensor);
}

/// What a tap carries from the forward to the backward pass.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) sink: Arc<dyn GradientSink>,
    pub(crate) census: Option<Arc<Census>>,
}

/// The tap as an operation of a backend: the identity, and under autodiff the place where a
/// finished gradient leaves the graph.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Autodiff
)]
pub(crate) trait TapBackend: Backend {
    /// Returns `value`. `clock` only lends its depth on the tape (see [`Clock`](super::Clock)).
    fn tap(
        value: FloatTensor<Self>,
        clock: FloatTensor<Self>,
        delivery: Delivery,
    ) -> FloatTensor<Self> {
        let _ = (clock, delivery);
        value
    }
}

#[cfg(feature = "cubecl")]
impl TapBackend for burn::backend::Cube {}
#[cfg(feature = "flex")]
impl TapBackend for burn::backend::Flex {}
#[cfg(feature = "ndarray")]
impl TapBackend for burn::backend::NdArray {}

impl<B, C> TapBackend for Autodiff<B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<B>,
{
    fn tap(
        value: FloatTensor<Self>,
        clock: FloatTensor<Self>,
        delivery: Delivery,
    ) -> FloatTensor<Self> {
        let (value, leaf) = value.into_parts();
        let prepared = Tap
            .prepare::<C>([leaf, clock.node()])
            .compute_bound()
            .stateful();

        match prepared {
            OpsKind::Tracked(prepared) => {
                let census = delivery.census.clone();
                let tapped = prepared.finish(delivery, value);
                if let Some(census) = census {
                    census.watch::<B>(&tapped);
                }
                tapped
            }
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
        let Delivery { sink, census } = ops.state;

        if let Some(census) = census {
            census.count::<B>(ops.node.id, gradients);
        }
        sink.receive(DispatchTensor::from_backend(BackendTensor::Float(gradient)));
    }
}
