use std::sync::Arc;

use backburn_base::{lift, to_device};
use burn::backend::DispatchTensor;
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use crate::pass::{FailedIn, Pass};
use crate::tap::{GradientSink, PassedGradients, tap};
use crate::weights::{TrackedTensor, Unused};

/// A function that recomputes a block and runs its backward pass. Its arguments are the gradients of the outputs, `None` for an
/// output without one, and a signal tensor. It returns the gradients of the block's tracked tensors.
pub(super) type Recompute = Box<
    dyn FnOnce(Vec<Option<DispatchTensor>>, DispatchTensor) -> Vec<Option<DispatchTensor>> + Send,
>;

/// The node of a checkpointed block on the tape: its backward step runs after those of all outputs, and before those of all
/// tracked tensors of the block.
///
/// ```text
/// output 0 --+     +-- input 0
/// output 1 --+--> link 0 --> link 1 --> ..
/// output 2 --+                +-- input 1
/// ```
///
/// Each arrow is a signal: a tensor of one element, whose gradient only triggers the next backward step. So a
/// block may have inputs and outputs of any shape, dtype and device, and an output that does not affect the loss
/// has no gradient. The number of nodes is minimal, because each backward pass in the process, and so the
/// recomputation of each block, visits all nodes.
pub(super) struct CheckpointNode {
    pass: Arc<Pass>,
    /// Name of the block.
    name: String,
    /// `true` if the block read parameters of the training.
    reads_parameters: bool,
    recompute: Mutex<Option<Recompute>>,
    /// Gradients of the outputs.
    pub(super) output_gradients: Mutex<Vec<Option<DispatchTensor>>>,
    /// Gradients of the block's tracked tensors; empty if the pass has failed.
    input_gradients: Mutex<Vec<Option<DispatchTensor>>>,
}

impl CheckpointNode {
    pub(super) fn new(
        pass: Arc<Pass>,
        name: String,
        reads_parameters: bool,
        recompute: Recompute,
        outputs: usize,
    ) -> Self {
        Self {
            pass,
            name,
            reads_parameters,
            recompute: Mutex::new(Some(recompute)),
            output_gradients: Mutex::new(vec![None; outputs]),
            input_gradients: Mutex::default(),
        }
    }

    /// Links the block's `tracked` tensors on the tape, and returns the signal to which the outputs are attached.
    pub(super) fn anchor(
        self: &Arc<Self>,
        tracked: Vec<TrackedTensor>,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> Tensor<1> {
        let end = lift(Tensor::zeros([1], &device.clone().inner()), strategy);
        let link = |index, unused| {
            Arc::new(Link {
                node: self.clone(),
                index,
                unused: Mutex::new(unused),
            })
        };
        if tracked.is_empty() {
            let leaf = end.clone().require_grad();
            return tap(end, leaf.into_dispatch(), link(0, None));
        }
        let links = tracked.into_iter().enumerate().rev();
        links.fold(end, |next, (index, tracked)| {
            let link = link(index, tracked.unused);
            tap(to_device(next, &tracked.device), tracked.tensor, link)
        })
    }

    /// Recomputes the block when the signal reaches its first link.
    fn run_once(&self, signal: &DispatchTensor) {
        let recompute = self.recompute.lock().take();
        if let Some(recompute) = recompute {
            if self.reads_parameters && self.pass.is_over() {
                panic!(
                    "the block {} was recomputed outside of its training step: a tensor left the closure of the step with its \
                     graph. Detach the tensor in the closure",
                    self.name
                );
            }
            let output_gradients = std::mem::take(&mut *self.output_gradients.lock());
            *self.input_gradients.lock() = self.pass.guarded(FailedIn::Closure, || {
                recompute(output_gradients, signal.clone())
            });
        }
    }
}

/// The gradient sink between two signals, which passes on the gradient of one tracked tensor.
struct Link {
    node: Arc<CheckpointNode>,
    index: usize,
    /// The gradient of zeros if the block does not use the tensor.
    unused: Mutex<Option<Unused>>,
}

impl GradientSink for Link {
    fn receive(&self, signal: DispatchTensor) -> PassedGradients {
        self.node.run_once(&signal);
        PassedGradients {
            value: Some(signal),
            anchor: self.gradient(),
            ..PassedGradients::default()
        }
    }
}

impl Link {
    fn gradient(&self) -> Option<DispatchTensor> {
        let mut found = self.node.input_gradients.lock();
        let found = found.get_mut(self.index).map(Option::take);
        let has_run = found.is_some();
        found.flatten().or_else(|| {
            let Unused { what, zeros } = self.unused.lock().take()?;
            if has_run {
                let blocks = &self.node.pass.blocks;
                blocks.warn_unused(&self.node.name, &what);
            }
            Some(zeros())
        })
    }
}
