//! The input of a block outside of the autodiff graph of its caller.

use backburn_base::lift;
use burn::backend::autodiff::NodeId;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use super::activations::Activations;
use crate::tap::node;
use crate::weights::TrackedTensor;

/// A float input of a block, by how the caller tracks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    /// Layers such as dropout compute with it as for inference, in both runs.
    WithoutAutodiff,
    /// Under autodiff, without a gradient.
    Constant,
    /// Its gradient is computed.
    Tracked,
}

impl InputKind {
    pub(super) fn of(tensor: &Tensor<1>) -> Self {
        match (tensor.is_autodiff(), tensor.is_tracked()) {
            (false, _) => Self::WithoutAutodiff,
            (true, false) => Self::Constant,
            (true, true) => Self::Tracked,
        }
    }
}

/// An input without autodiff, and what is needed to restore it.
pub(super) struct Detached<X> {
    pub(super) input: X,
    /// The kind of each float tensor.
    pub(super) kinds: Vec<InputKind>,
    /// The tracked tensors, which receive the gradients of the input.
    pub(super) tracked: Vec<TrackedTensor>,
    pub(super) strategy: GradientCheckpointingStrategy,
}

impl<X: Activations> Detached<X> {
    pub(super) fn of(input: X) -> Self {
        let (mut kinds, mut tracked) = (Vec::new(), Vec::new());
        let mut strategy = GradientCheckpointingStrategy::default();
        let input = input.map_floats(&mut |tensor| {
            strategy = tensor.gradient_checkpointing_strategy().unwrap_or(strategy);
            let kind = InputKind::of(&tensor);
            if kind == InputKind::Tracked {
                let index = kinds.len();
                let what = || format!("float input {index} (counted from 0)");
                tracked.push(TrackedTensor::new(tensor.clone(), what));
            }
            kinds.push(kind);
            match kind {
                InputKind::WithoutAutodiff => tensor,
                InputKind::Constant | InputKind::Tracked => tensor.inner(),
            }
        });
        Self {
            input,
            kinds,
            tracked,
            strategy,
        }
    }
}

/// Returns a detached `input` under autodiff, untracked, and the nodes of its constants.
pub(super) fn lifted<X: Activations>(
    input: X,
    kinds: &[InputKind],
    strategy: GradientCheckpointingStrategy,
) -> (X, Vec<NodeId>) {
    let (mut kinds, mut constants) = (kinds.iter(), Vec::new());
    let input = input.map_floats(&mut |tensor| match kinds.next() {
        Some(InputKind::WithoutAutodiff) => tensor,
        Some(InputKind::Tracked) => lift(tensor, strategy),
        Some(InputKind::Constant) | None => {
            let lifted = lift(tensor, strategy);
            constants.extend(node(&lifted));
            lifted
        }
    });
    (input, constants)
}
