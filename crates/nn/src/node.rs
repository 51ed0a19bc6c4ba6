//! A node of Burn's autodiff graph with a backward pass of its own.
//!
//! # Invariants
//!
//! - The backward pass computes with tensors without autodiff, or in a graph of its own: the graph of the node is locked while its
//!   backward steps run.
//! - A node keeps what its backward function captures, and the inputs that are marked in `kept`.
//! - A gradient that is removed from the container is registered again, in the sum that the backward function returns.

#![allow(deprecated)] // `NdArray`: Burn 0.22 still ships it.

use std::array::from_fn;
use std::fmt::{Debug, Formatter};

use backburn_base::{AnyTensor, primitive};
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, DispatchDevice, DispatchKindConversion, DispatchTensor,
    TensorMetadata,
};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};

/// Strategy of the nodes and graphs of this crate. A node that is compute bound is the same with each.
const STRATEGY: GradientCheckpointingStrategy = GradientCheckpointingStrategy::Disabled;

/// Largest number of inputs of an operation.
const INPUTS: usize = 4;

/// A tensor, or none, for each input.
type Each = Vec<Option<AnyTensor>>;

/// Computes the gradients of the inputs from the gradient of the output, and from the inputs that the tape keeps. One that adds to a sum
/// receives the sum in place of the input.
type Function = Box<dyn FnOnce(AnyTensor, Each) -> Each + Send>;

/// The result of an operation on tensors without autodiff, with its backward pass.
pub(crate) struct Computed {
    output: AnyTensor,
    /// `true` for each input that the tape keeps.
    kept: Vec<bool>,
    /// Shape of the only input, if most rows of its gradient are zero, so that the function adds to the sum of the gradients so far, if
    /// there is one. Autodiff would add a second matrix.
    pub(crate) adds_to: Option<Shape>,
    backward: Function,
}

impl Computed {
    /// Creates the result with a `backward` that computes the gradients of the inputs. One of an input that is not tracked
    /// may be `None`, or is dropped.
    pub(crate) fn new<G: Into<Option<AnyTensor>>, const N: usize>(
        output: AnyTensor,
        backward: impl FnOnce(AnyTensor) -> [G; N] + Send + 'static,
    ) -> Self {
        Self::keeping([false; N], output, move |gradient, _| backward(gradient))
    }

    /// Creates the result with a `backward` that also receives the inputs that are `kept`. The tape keeps them, or computes them again if it
    /// can, such as the weight of an adapter on a quantized base.
    pub(crate) fn keeping<G: Into<Option<AnyTensor>>, const N: usize>(
        kept: [bool; N],
        output: AnyTensor,
        backward: impl FnOnce(AnyTensor, [Option<AnyTensor>; N]) -> [G; N] + Send + 'static,
    ) -> Self {
        let backward = move |gradient, kept: Each| {
            let kept = kept.try_into().expect("one for each input");
            backward(gradient, kept).map(Into::into).into()
        };
        Self {
            output,
            kept: kept.into(),
            adds_to: None,
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
    let attach = match attach_on(&inputs[0].device()) {
        None if is_tracked => return compose(inputs),
        attach => attach.filter(|_| is_tracked),
    };
    // The strategy of a tracked input, or of any if none is tracked.
    let strategies = inputs.iter().zip(needed);
    let mut strategies = strategies.filter(|(_, needed)| *needed == is_tracked);
    let strategy = strategies.find_map(|(input, _)| input.gradient_checkpointing_strategy());
    let inner = inputs.each_ref().map(|it| it.0.clone().inner().into());
    let computed = run(inner, needed);
    let output = match attach {
        Some(attach) => attach(computed, inputs.into()),
        None => computed.output,
    };
    match strategy {
        Some(strategy) => output.lifted(strategy),
        None => output,
    }
}

/// Runs `compose`, operations of Burn. The tape keeps the inputs, and the backward pass runs `compose` again in a new graph.
pub(crate) fn recomputed<const N: usize>(
    inputs: [AnyTensor; N],
    needed: [bool; N],
    compose: impl Fn([AnyTensor; N]) -> AnyTensor + Send + 'static,
) -> Computed {
    Computed::new(compose(inputs.clone()), move |gradient| {
        let leaves = from_fn(|index| leaf(&inputs[index], needed[index]));
        let output = compose(leaves.clone());
        // The gradient of the output is the other factor of this product.
        let mut gradients = (output.0 * gradient.0).backward();
        leaves.map(|leaf| leaf.0.grad_remove(&mut gradients).map(AnyTensor))
    })
}

/// Returns a leaf of a new graph if the gradient of `tensor` is needed, otherwise `tensor`, a constant.
pub(crate) fn leaf(tensor: &AnyTensor, is_needed: bool) -> AnyTensor {
    match is_needed {
        true => AnyTensor(tensor.clone().lifted(STRATEGY).0.require_grad()),
        false => tensor.clone(),
    }
}

/// Adds the node of an operation on `inputs` to the graph, and returns its output.
type Attach = fn(Computed, Vec<AnyTensor>) -> AnyTensor;

/// Returns the function for the backend of `device`, if this build has one.
fn attach_on(device: &Device) -> Option<Attach> {
    #[allow(unreachable_patterns)] // Burn may have more backends enabled than this crate, or not.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => Some(attach::<burn::backend::Cube>),
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => Some(attach::<burn::backend::Flex>),
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => Some(attach::<burn::backend::NdArray>),
        #[cfg(feature = "remote")]
        DispatchDevice::Remote(_) => Some(attach::<burn::backend::Remote>),
        _ => None,
    }
}

fn attach<B>(computed: Computed, inputs: Vec<AnyTensor>) -> AnyTensor
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    let lifted = |it: AnyTensor| primitive::<Autodiff<B>>(it.lifted(STRATEGY).0.into_dispatch());
    let inputs: Vec<_> = inputs.into_iter().map(lifted).collect();
    let output = lifted(computed.output);
    // A node has a fixed number of parents: the output, which is not tracked, is the rest of them.
    let parents = from_fn(|index| inputs.get(index).unwrap_or(&output).node());
    let (output, _leaf) = output.into_parts();
    let prepared = Node(computed.backward).prepare::<NoCheckpointing>(parents);
    any::<Autodiff<B>>(match prepared.compute_bound().stateful() {
        OpsKind::Tracked(mut prepared) => {
            let inputs = inputs.iter().zip(computed.kept);
            let inputs = inputs.map(|(input, is_kept)| {
                let kept = is_kept.then(|| prepared.checkpoint(input));
                (kept, input.dtype())
            });
            let inputs = inputs.collect();
            prepared.finish((computed.adds_to, inputs), output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    })
}

/// A node, which runs its backward function once.
struct Node(Function);

impl Debug for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Node")
    }
}

impl<B> Backward<B, INPUTS> for Node
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    /// The shape of a sum that it adds to, and for each input its node, if the tape keeps it, and its type.
    type State = (Option<Shape>, Vec<(Option<NodeId>, DType)>);

    fn backward(
        self,
        ops: Ops<Self::State, INPUTS>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = any::<B>(gradients.consume::<B>(&ops.node));
        let (adds_to, inputs) = ops.state;
        let (kept, dtypes): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
        let kept = kept.into_iter();
        let kept = kept.map(|id| Some(any::<B>(checkpointer.retrieve_node_output(id?))));
        let mut received: Each = kept.collect();
        // `consume` removes the gradient of a tensor that was computed, as this one, but copies that of a leaf, which would count twice.
        if let Some(shape) = adds_to
            && let Some(parent) = &ops.parents[0]
            && parent.requirement == ops.node.requirement
        {
            // `consume` panics without a gradient. A zero of another shape means that there was none.
            let zero = Tensor::<2>::zeros([1, 1], (&gradient.device(), dtypes[0]));
            gradients.register::<B>(parent.id, primitive(zero.into_dispatch()));
            let sum = any::<B>(gradients.consume::<B>(parent));
            received[0] = (sum.shape() == shape).then_some(sum);
        }
        let found = (self.0)(gradient, received).into_iter().zip(dtypes);
        for (parent, (gradient, dtype)) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                let gradient = gradient.in_type(dtype).0.into_dispatch();
                gradients.register::<B>(parent.id, primitive(gradient));
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
