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

/// The second run of a block.
pub(super) trait Rerun: Debug + Send + Sync {
    /// Returns the gradient of the packed input, given that of the packed output. The autodiff graph is
    /// locked during the call: it must not touch a tensor of it.
    fn rerun(&self, gradient: DispatchTensor) -> DispatchTensor;
}

/// A checkpointed block as an operation of a backend.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Autodiff
)]
pub(super) trait CheckpointBackend: Backend {
    /// Returns `output`, which was computed from `input` without recording. `leaf` has no part in it but
    /// to be tracked.
    fn checkpoint(
        input: FloatTensor<Self>,
        leaf: FloatTensor<Self>,
        output: FloatTensor<Self>,
        segment: Arc<dyn Rerun>,
    ) -> FloatTensor<Self> {
        let _ = (input, leaf, segment);
        output
    }
}

#[cfg(feature = "cubecl")]
impl CheckpointBackend for burn::backend::Cube {}
#[cfg(feature = "flex")]
impl CheckpointBackend for burn::backend::Flex {}
#[cfg(feature = "ndarray")]
impl CheckpointBackend for burn::backend::NdArray {}

impl<B, C> CheckpointBackend for Autodiff<B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<B>,
{
    fn checkpoint(
        input: FloatTensor<Self>,
        leaf: FloatTensor<Self>,
        output: FloatTensor<Self>,
        segment: Arc<dyn Rerun>,
    ) -> FloatTensor<Self> {
        let (output, _untracked) = output.into_parts();
        let prepared = Checkpoint
            .prepare::<C>([input.node(), leaf.node()])
            .compute_bound()
            .stateful();
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(segment, output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}

#[derive(Debug)]
struct Checkpoint;

impl<B> Backward<B, 2> for Checkpoint
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Arc<dyn Rerun>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let gradient = DispatchTensor::from_backend(BackendTensor::Float(gradient));
        let gradient = ops.state.rerun(gradient);
        let [input, _leaf] = ops.parents;
        if let Some(input) = input {
            let gradient = DispatchTensor::try_into_backend(gradient);
            let gradient = gradient.expect("the second run is on the backend of the first");
            let BackendTensor::Float(gradient) = gradient else {
                unreachable!("the gradient of a float tensor is one")
            };
            gradients.register::<B>(input.id, gradient);
        }
    }
}
