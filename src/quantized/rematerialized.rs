//! A weight that the tape rematerializes when it needs the value.

#![allow(deprecated)] // `NdArray`: Burn 0.22 still ships it, and its users train on it.

use std::marker::PhantomData;
use std::sync::Arc;

use backburn_base::{lift, primitive};
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor,
    backend_extension,
};
use burn::tensor::Tensor;

use super::weight::ComposedWeight;

/// Composes a weight from factors that may be trained. The tape holds nothing of its size: the backward pass rematerializes it, and
/// drops its gradient as soon as those of the factors are computed.
pub(super) fn rematerialized(weight: ComposedWeight, a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
    if !a.is_autodiff() {
        return weight.composed(a, b);
    }
    let strategy = a.gradient_checkpointing_strategy().unwrap_or_default();
    let value = weight.composed(a.clone().inner(), b.clone().inner());
    let value = lift(value, strategy);
    if !a.is_tracked() && !b.is_tracked() {
        return value;
    }
    let [value, a, b] = [value, a, b].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::rematerialized(value, a, b, Arc::new(weight)))
}

/// The backend operation: returns `value`, and registers its rematerialization under autodiff.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Remote: cfg(feature = "remote"),
    Autodiff
)]
pub(crate) trait RematerializedBackend: Backend {
    /// Returns `value`, which `weight` has composed of `a` and `b`.
    fn rematerialized(
        value: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        weight: Arc<ComposedWeight>,
    ) -> FloatTensor<Self> {
        let _ = (a, b, weight);
        value
    }
}

#[cfg(feature = "cubecl")]
impl RematerializedBackend for burn::backend::Cube {}
#[cfg(feature = "flex")]
impl RematerializedBackend for burn::backend::Flex {}
#[cfg(feature = "ndarray")]
impl RematerializedBackend for burn::backend::NdArray {}
#[cfg(feature = "remote")]
impl RematerializedBackend for burn::backend::Remote {}

impl<B, C> RematerializedBackend for Autodiff<B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<B>,
{
    fn rematerialized(
        value: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        weight: Arc<ComposedWeight>,
    ) -> FloatTensor<Self> {
        let (value, _) = value.into_parts();
        let rematerialization = Rematerialization::<B> {
            a: a.id(),
            b: b.id(),
            weight: weight.clone(),
            backend: PhantomData,
        };
        // This operation is rematerialized under any strategy of the graph.
        let prepared = Rematerialized
            .prepare::<BalancedCheckpointing>([a.node(), b.node()])
            .memory_bound()
            .retro_forward(rematerialization)
            .parents([&a, &b])
            .stateful();
        match prepared {
            OpsKind::Tracked(mut prepared) => {
                let factors = [prepared.checkpoint(&a), prepared.checkpoint(&b)];
                prepared.finish((factors, weight), value)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(value),
        }
    }
}

/// The rematerialization of the weight.
#[derive(Debug)]
struct Rematerialization<B> {
    a: NodeId,
    b: NodeId,
    weight: Arc<ComposedWeight>,
    backend: PhantomData<B>,
}

impl<B> RetroForward for Rematerialization<B>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let [a, b] = [self.a, self.b].map(|id| tensor::<B>(states.get_state(&id)));
        states.save(
            out_node,
            primitive::<B>(self.weight.composed(a, b).into_dispatch()),
        );
    }
}

#[derive(Debug)]
struct Rematerialized;

impl<B> Backward<B, 2> for Rematerialized
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = ([NodeId; 2], Arc<ComposedWeight>);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = tensor::<B>(gradients.consume::<B>(&ops.node));
        let (factors, weight) = ops.state;
        let [a, b] = factors.map(|id| tensor::<B>(checkpointer.retrieve_node_output(id)));
        let of_factors = weight.gradients(gradient, a, b);
        for (parent, gradient) in ops.parents.into_iter().zip(of_factors) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, primitive::<B>(gradient.into_dispatch()));
            }
        }
    }
}

fn tensor<B>(primitive: FloatTensor<B>) -> Tensor<2>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::from_dispatch(DispatchTensor::from_backend(BackendTensor::Float(
        primitive,
    )))
}
