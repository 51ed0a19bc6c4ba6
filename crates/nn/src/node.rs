//! A node of Burn's autodiff graph with a backward pass of its own.
//!
//! # Invariants
//!
//! - The backward pass computes with tensors without autodiff only: the graph is locked while its backward steps run.
//! - A node keeps what its backward function captures, and the inputs that are marked in `kept`.

#![allow(deprecated)] // `NdArray`: Burn 0.22 still ships it.

use std::array::from_fn;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use backburn_base::{AnyTensor, primitive};
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchDevice, DispatchKindConversion,
    DispatchTensor, backend_extension,
};
use burn::tensor::{Device, Tensor};
use parking_lot::Mutex;

/// Most inputs of an operation.
const INPUTS: usize = 4;

/// A tensor, or none, for each input.
type Each = Vec<Option<AnyTensor>>;

/// Computes the gradients of the inputs from the gradient of the output, and the inputs that the tape keeps.
type Function = Box<dyn FnOnce(AnyTensor, Each) -> Each + Send>;

/// The result of an operation on tensors without autodiff, with its backward pass.
pub(crate) struct Computed {
    pub(crate) output: AnyTensor,
    /// `true` for each input that the tape keeps.
    kept: Vec<bool>,
    backward: Function,
}

impl Computed {
    /// `backward` computes the gradients of the inputs. One of an input that is not tracked may be `None`, or is dropped.
    pub(crate) fn new<const N: usize>(
        output: AnyTensor,
        backward: impl FnOnce(AnyTensor) -> [Option<AnyTensor>; N] + Send + 'static,
    ) -> Self {
        Self::keeping([false; N], output, move |gradient, _| backward(gradient))
    }

    /// Creates the result with a `backward` that also receives the inputs that are `kept`. The tape keeps them, or computes them again if it
    /// can, such as the weight of an adapter on a quantized base.
    pub(crate) fn keeping<const N: usize>(
        kept: [bool; N],
        output: AnyTensor,
        backward: impl FnOnce(AnyTensor, [Option<AnyTensor>; N]) -> [Option<AnyTensor>; N]
        + Send
        + 'static,
    ) -> Self {
        let backward = move |gradient, kept: Each| {
            let kept = kept.try_into().expect("one for each input");
            backward(gradient, kept).into()
        };
        Self {
            output,
            kept: kept.into(),
            backward: Box::new(backward),
        }
    }
}

/// Runs an operation on `inputs`. `run` receives them without autodiff, and for each `true` if its gradient is needed. Where the
/// graph can't have a node of this crate, `compose` computes the output from operations that Burn differentiates.
pub(crate) fn operation<const N: usize>(
    inputs: [AnyTensor; N],
    run: impl FnOnce([AnyTensor; N], [bool; N]) -> Computed,
    compose: impl FnOnce([AnyTensor; N]) -> AnyTensor,
) -> AnyTensor {
    let needed = inputs.each_ref().map(|input| input.is_tracked());
    let is_tracked = needed.contains(&true);
    if is_tracked && !covers(&inputs[0].device()) {
        return compose(inputs);
    }
    let strategies = inputs.iter().zip(needed);
    let strategies = strategies.filter(|(_, needed)| *needed == is_tracked);
    let strategy = strategies
        .filter_map(|(input, _)| input.gradient_checkpointing_strategy())
        .next();
    let inner = inputs.each_ref().map(|it| it.0.clone().inner().into());
    let computed = run(inner, needed);
    let Some(strategy) = strategy else {
        return computed.output;
    };
    let output = computed.output.lifted(strategy);
    if !is_tracked {
        return output;
    }
    let inputs = inputs.map(|input| match input.is_autodiff() {
        true => input.0.into_dispatch(),
        false => input.lifted(strategy).0.into_dispatch(),
    });
    let step = BackwardStep {
        kept: computed.kept,
        function: Arc::new(Mutex::new(Some(computed.backward))),
    };
    let output = output.0.into_dispatch();
    let output = <Dispatch as NodeBackend>::with_backward(output, inputs.into(), step);
    AnyTensor(Tensor::from_dispatch(output))
}

/// Returns `true` if this build has the extension of the backend of `device`.
fn covers(device: &Device) -> bool {
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

/// The backward pass of a node. Burn clones the states of nodes, and runs each once.
#[derive(Clone)]
struct BackwardStep {
    kept: Vec<bool>,
    function: Arc<Mutex<Option<Function>>>,
}

impl Debug for BackwardStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackwardStep")
    }
}

/// A node as an operation of a backend.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Remote: cfg(feature = "remote"),
    Autodiff
)]
trait NodeBackend: Backend {
    /// Returns `output`. Under autodiff it is the child of `inputs`, with the backward pass of `step`.
    fn with_backward(
        output: FloatTensor<Self>,
        inputs: Vec<DispatchTensor>,
        step: BackwardStep,
    ) -> FloatTensor<Self> {
        let _ = (inputs, step);
        output
    }
}

#[cfg(feature = "cubecl")]
impl NodeBackend for burn::backend::Cube {}
#[cfg(feature = "flex")]
impl NodeBackend for burn::backend::Flex {}
#[cfg(feature = "ndarray")]
impl NodeBackend for burn::backend::NdArray {}
#[cfg(feature = "remote")]
impl NodeBackend for burn::backend::Remote {}

impl<B, C> NodeBackend for Autodiff<B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Self>,
{
    fn with_backward(
        output: FloatTensor<Self>,
        inputs: Vec<DispatchTensor>,
        step: BackwardStep,
    ) -> FloatTensor<Self> {
        let inputs: Vec<_> = inputs.into_iter().map(primitive::<Self>).collect();
        // A node has a fixed number of parents. The output is not tracked.
        let parents = from_fn(|index| inputs.get(index).unwrap_or(&output).node());
        let (output, _leaf) = output.into_parts();
        let prepared = Node.prepare::<C>(parents).compute_bound().stateful();
        match prepared {
            OpsKind::Tracked(mut prepared) => {
                let inputs = inputs.iter().zip(&step.kept);
                let kept =
                    inputs.map(|(input, is_kept)| is_kept.then(|| prepared.checkpoint(input)));
                let kept = kept.collect();
                prepared.finish((step, kept), output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}

#[derive(Debug)]
struct Node;

impl<B> Backward<B, INPUTS> for Node
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (BackwardStep, Vec<Option<NodeId>>);

    fn backward(
        self,
        ops: Ops<Self::State, INPUTS>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = any::<B>(gradients.consume::<B>(&ops.node));
        let (step, kept) = ops.state;
        let kept = kept.into_iter();
        let kept = kept.map(|id| Some(any::<B>(checkpointer.retrieve_node_output(id?))));
        let function = step.function.lock().take();
        let function = function.expect("a backward step runs once");
        let found = function(gradient, kept.collect());
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, primitive(gradient.0.into_dispatch()));
            }
        }
    }
}

fn any<B>(primitive: FloatTensor<B>) -> AnyTensor
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = DispatchTensor::from_backend(BackendTensor::Float(primitive));
    AnyTensor(Tensor::from_dispatch(tensor))
}
