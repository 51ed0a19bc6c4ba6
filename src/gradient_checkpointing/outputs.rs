//! The float tensors that a block returns, in its two runs.

use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};
use parking_lot::Mutex;

use super::activations::FloatMap;
use super::joint::{Joint, moved};
use crate::tap::{GradientSink, Passed, join, lift, tap};

/// Notes what a block returns.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Forms {
    pub(super) found: Vec<(Shape, DType)>,
    /// Whether a tensor is tracked.
    pub(super) tracked: bool,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) device: Option<Device>,
}

impl Forms {
    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        let tensors = self.found.iter();
        tensors
            .map(|(shape, dtype)| shape.num_elements() * dtype.size())
            .sum()
    }
}

impl FloatMap for Forms {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.found.push((tensor.shape(), tensor.dtype()));
        self.tracked |= tensor.is_tracked();
        self.device.get_or_insert_with(|| tensor.device());
        if let Some(strategy) = tensor.gradient_checkpointing_strategy() {
            self.strategy = strategy;
        }
        tensor
    }
}

/// Taps the outputs of the first run: their gradients go to the joint.
pub(super) struct Tapped<'a> {
    pub(super) joint: &'a Arc<Joint>,
    /// The joint's node on the tape.
    pub(super) node: Tensor<1>,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) index: usize,
}

impl FloatMap for Tapped<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let device = tensor.device();
        let beside = moved(self.node.clone(), &device);
        let output = Output {
            joint: self.joint.clone(),
            index: self.index,
            signal: Mutex::new(Some(Tensor::ones([1], (&device.inner(), beside.dtype())))),
        };
        self.index += 1;
        let untracked = lift(tensor.inner(), self.strategy);
        join(untracked, beside.into_dispatch(), Arc::new(output))
    }
}

/// Where the gradient of an output arrives.
#[derive(Debug)]
struct Output {
    joint: Arc<Joint>,
    index: usize,
    /// What the joint gets, to be reached.
    signal: Mutex<Option<Tensor<1>>>,
}

impl GradientSink for Output {
    fn receive(&self, gradient: DispatchTensor) -> Passed {
        self.joint.arrive(self.index, gradient);
        Passed {
            value: None,
            beside: self.signal.lock().take().map(Tensor::into_dispatch),
        }
    }
}

/// Puts something to go back from beside every output of the second run that has a gradient.
pub(super) struct Roots {
    /// The gradients, in the order of the outputs.
    pub(super) gradients: std::vec::IntoIter<Option<DispatchTensor>>,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) root: Option<Tensor<1>>,
}

impl FloatMap for Roots {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if let Some(gradient) = self.gradients.next().flatten() {
            let device = tensor.device();
            let given = Given(Mutex::new(Some(gradient)));
            let root = tap(
                Tensor::<1>::zeros([1], &device.inner()),
                self.strategy,
                tensor.clone().into_dispatch(),
                Arc::new(given),
                None,
            );
            self.root = Some(match self.root.take() {
                Some(other) => moved(root, &other.device()) + other,
                None => root,
            });
        }
        tensor
    }
}

/// The gradient of what its tap is beside, whatever arrives itself.
#[derive(Debug)]
struct Given(Mutex<Option<DispatchTensor>>);

impl GradientSink for Given {
    fn receive(&self, _gradient: DispatchTensor) -> Passed {
        Passed {
            value: None,
            beside: self.0.lock().take(),
        }
    }
}
