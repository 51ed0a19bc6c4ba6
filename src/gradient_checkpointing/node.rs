use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use crate::device::sent;
use crate::pass::{FailedIn, Pass};
use crate::tap::{GradientSink, PassedGradients, join, lift};
use crate::weights::{TrackedTensor, Unused};

/// Runs a block for the second time and back. Gets the gradients of its outputs, those that there are, with a signal that it may
/// give in its turn, and returns those of the tensors that it computes with.
pub(super) type Recompute = Box<
    dyn FnOnce(Vec<Option<DispatchTensor>>, DispatchTensor) -> Vec<Option<DispatchTensor>> + Send,
>;

/// A block's place on the tape: after all of its outputs, and before all that it computes with.
///
/// ```text
/// output 0 --+     +-- input 0
/// output 1 --+--> link 0 --> link 1 --> ..
/// output 2 --+                +-- input 1
/// ```
///
/// Every arrow is a tensor of one element, whose gradient says nothing but that it is its turn. So a
/// block may have inputs and outputs of all shapes, dtypes and devices, and an output that the loss does
/// not use has no gradient. The joint has no more nodes than that: every backward pass in the process, and so the
/// second run of every block, looks at all nodes that there are.
pub(super) struct CheckpointNode {
    pass: Arc<Pass>,
    /// Of the block.
    name: String,
    recompute: Mutex<Option<Recompute>>,
    /// Of the outputs.
    output_gradients: Mutex<Vec<Option<DispatchTensor>>>,
    /// Of what the block computes with: nothing if the pass has failed.
    input_gradients: Mutex<Vec<Option<DispatchTensor>>>,
}

impl CheckpointNode {
    pub(super) fn new(pass: Arc<Pass>, name: String, recompute: Recompute, outputs: usize) -> Self {
        Self {
            pass,
            name,
            recompute: Mutex::new(Some(recompute)),
            output_gradients: Mutex::new(vec![None; outputs]),
            input_gradients: Mutex::default(),
        }
    }

    /// The first node of the joint on the tape, between `tracked`, which the block computes with, and the outputs.
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
            return join(end, leaf.into_dispatch(), link(0, None));
        }
        let links = tracked.into_iter().enumerate().rev();
        links.fold(end, |next, (index, tracked)| {
            let link = link(index, tracked.unused);
            join(sent(next, &tracked.device), tracked.tensor, link)
        })
    }

    /// The turn of a link comes; that of the block comes with the first.
    fn run_once(&self, signal: &DispatchTensor) {
        let recompute = self.recompute.lock().take();
        if let Some(recompute) = recompute {
            let output_gradients = std::mem::take(&mut *self.output_gradients.lock());
            *self.input_gradients.lock() = self.pass.guarded(FailedIn::Backward, || {
                recompute(output_gradients, signal.clone())
            });
        }
    }

    /// The gradient of an output arrives.
    pub(super) fn set_output_gradient(&self, index: usize, gradient: DispatchTensor) {
        self.output_gradients.lock()[index] = Some(gradient);
    }
}

/// The turn of something that the block computes with.
struct Link {
    node: Arc<CheckpointNode>,
    index: usize,
    /// Its gradient if the block does not use it.
    unused: Mutex<Option<Unused>>,
}

impl GradientSink for Link {
    fn receive(&self, signal: DispatchTensor) -> PassedGradients {
        self.node.run_once(&signal);
        PassedGradients {
            value: Some(signal),
            anchor: self.gradient(),
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
                blocks.tell_unused(&self.node.name, &what);
            }
            Some(zeros())
        })
    }
}
