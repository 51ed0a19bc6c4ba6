//! The float tensors that a block returns in its first run and in its recomputation.

use std::sync::Arc;

use backburn_base::{lift, to_device};
use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};
use parking_lot::Mutex;

use super::activations::{Activations, each};
use super::node::CheckpointNode;
use crate::pass::{Pass, StepEvent};
use crate::tap::{GradientSink, PassedGradients, node as node_of, tap};

/// Specs of the float tensors that a block returns.
#[derive(Debug, Default)]
pub(super) struct OutputSpecs {
    pub(super) tensors: Vec<(Shape, DType)>,
    /// `true` if one of the tensors is tracked.
    pub(super) tracked: bool,
    pub(super) strategy: GradientCheckpointingStrategy,
    /// The device of the first tensor under autodiff.
    pub(super) device: Option<Device>,
}

impl OutputSpecs {
    pub(super) fn of<Y: Activations>(output: &Y) -> Self {
        let mut specs = Self::default();
        each(output, |tensor| {
            specs.tensors.push((tensor.shape(), tensor.dtype()));
            specs.tracked |= tensor.is_tracked();
            if tensor.is_autodiff() {
                specs.device.get_or_insert_with(|| tensor.device());
            }
            if let Some(strategy) = tensor.gradient_checkpointing_strategy() {
                specs.strategy = strategy;
            }
        });
        specs
    }

    /// Returns the bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        let tensors = self.tensors.iter();
        tensors
            .map(|(shape, dtype)| shape.num_elements() * dtype.size())
            .sum()
    }
}

/// Taps the `output` of the first run: its gradients are delivered to `node`, which has this `anchor` on the tape. Constant inputs, with
/// the nodes `constants`, stay constants.
pub(super) fn tap_outputs<Y: Activations>(
    output: Y,
    node: &Arc<CheckpointNode>,
    anchor: &Tensor<1>,
    strategy: GradientCheckpointingStrategy,
    constants: &[NodeId],
) -> Y {
    let mut outputs = 0..;
    output.map_floats(&mut |tensor| {
        let index = outputs.next().unwrap_or_default();
        if !tensor.is_autodiff() || node_of(&tensor).is_some_and(|it| constants.contains(&it)) {
            return tensor;
        }
        let device = tensor.device();
        let anchor = to_device(anchor.clone(), &device);
        let output = OutputSink {
            node: node.clone(),
            index,
            signal: Mutex::new(Some(anchor.clone().inner())),
        };
        let untracked = lift(tensor.inner(), strategy);
        tap(untracked, anchor.into_dispatch(), Arc::new(output))
    })
}

/// The gradient sink of an output.
struct OutputSink {
    node: Arc<CheckpointNode>,
    index: usize,
    /// The gradient for the anchor, which triggers the node. Its value is arbitrary.
    signal: Mutex<Option<Tensor<1>>>,
}

impl GradientSink for OutputSink {
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients {
        self.node.output_gradients.lock()[self.index] = Some(gradient);
        PassedGradients {
            anchor: self.signal.lock().take().map(Tensor::into_dispatch),
            ..PassedGradients::default()
        }
    }
}

/// Returns the root for the backward pass of a recomputation, which starts with the `gradients` of the tensors in `output`, in
/// their order; `None` if there are none. The value of `signal` is arbitrary.
pub(super) fn backward_root<Y: Activations>(
    output: &Y,
    gradients: Vec<Option<DispatchTensor>>,
    signal: &Tensor<1>,
    strategy: GradientCheckpointingStrategy,
    (pass, index): (&Arc<Pass>, Option<usize>),
) -> Option<Tensor<1>> {
    let mut gradients = gradients.into_iter();
    let mut all: Option<Tensor<1>> = None;
    each(output, |tensor| {
        if let Some(gradient) = gradients.next().flatten() {
            let value = to_device(signal.clone(), &tensor.device().inner());
            let gradient = Mutex::new(Some(gradient));
            let given = OutputGradient {
                gradient,
                pass: pass.clone(),
                index,
            };
            let anchor = tensor.clone().into_dispatch();
            let root = tap(
                lift(value, strategy).require_grad(),
                anchor,
                Arc::new(given),
            );
            // One backward pass per output would sum gradients in another order than the plain call.
            all = Some(match all.take() {
                Some(others) => to_device(root, &others.device()) + others,
                None => root,
            });
        }
    });
    all
}

/// The gradient sink at the root, which passes on a known gradient to the output.
struct OutputGradient {
    gradient: Mutex<Option<DispatchTensor>>,
    pass: Arc<Pass>,
    /// Index of the block in the pass.
    index: Option<usize>,
}

impl GradientSink for OutputGradient {
    fn receive(&self, _gradient: DispatchTensor) -> PassedGradients {
        if let Some(observers) = &self.pass.observers {
            let index = self.index;
            observers.emit(StepEvent::BlockBackward { index });
        }
        PassedGradients {
            anchor: self.gradient.lock().take(),
            ..PassedGradients::default()
        }
    }
}
