//! An input between its block's two runs: out of autodiff, and back in.

use burn::tensor::{Device, GradientCheckpointingStrategy, Gradients, Tensor};

use super::activations::FloatMap;
use super::pack::flat;
use crate::tap::lift;

/// Adds the devices that tensors are on.
pub(super) struct Devices(pub(super) Vec<Device>);

impl FloatMap for Devices {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(tensor.device());
        tensor
    }
}

/// Takes tensors out of their autodiff graph.
#[derive(Default)]
pub(super) struct Keep {
    /// Which of them were tracked in it.
    pub(super) tracked: Vec<bool>,
    pub(super) strategy: GradientCheckpointingStrategy,
}

impl FloatMap for Keep {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.tracked.push(tensor.is_tracked());
        if let Some(strategy) = tensor.gradient_checkpointing_strategy() {
            self.strategy = strategy;
        }
        tensor.inner()
    }
}

/// Brings tensors back into autodiff, untracked.
pub(super) struct Lift {
    pub(super) strategy: GradientCheckpointingStrategy,
}

impl FloatMap for Lift {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        lift(tensor, self.strategy)
    }
}

/// Brings tensors back into autodiff, as leaves if they were tracked before.
pub(super) struct Leaves<'a> {
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) tracked: std::slice::Iter<'a, bool>,
    /// The gradient of each leaf, flat.
    pub(super) gradients: Vec<FlatGradient>,
}

pub(super) type FlatGradient = Box<dyn FnOnce(&Gradients) -> Tensor<1>>;

impl FloatMap for Leaves<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let elements = tensor.shape().num_elements();
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let lifted = lift(tensor, self.strategy);
        if !self.tracked.next().is_some_and(|tracked| *tracked) {
            return lifted;
        }
        let zeros = move || Tensor::zeros([elements], (&device, dtype));
        let leaf = lifted.require_grad();
        let asked = leaf.clone();
        self.gradients.push(Box::new(move |gradients| {
            asked.grad(gradients).map_or_else(zeros, flat)
        }));
        leaf
    }
}
