//! An input between its block's two runs: out of autodiff, and back in.

use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use super::activations::FloatMap;
use crate::tap::lift;
use crate::weights::{OwnLeaf, TrackedTensor, own_leaf};

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
    /// For every tensor the place where its gradient goes, if it is tracked.
    pub(super) tracked: Vec<Option<TrackedTensor>>,
    pub(super) strategy: GradientCheckpointingStrategy,
}

impl FloatMap for Keep {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if let Some(strategy) = tensor.gradient_checkpointing_strategy() {
            self.strategy = strategy;
        }
        let tracked = tensor.is_tracked();
        let index = self.tracked.len();
        let what = || format!("float input {index} (counted from 0)");
        self.tracked
            .push(tracked.then(|| TrackedTensor::new(tensor.clone(), what)));
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
    pub(super) leaves: Vec<OwnLeaf>,
}

impl FloatMap for Leaves<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let lifted = lift(tensor, self.strategy);
        if !self.tracked.next().is_some_and(|tracked| *tracked) {
            return lifted;
        }
        let leaf = lifted.require_grad();
        self.leaves.push(own_leaf(leaf.clone()));
        leaf
    }
}
