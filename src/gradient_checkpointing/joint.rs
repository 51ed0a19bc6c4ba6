use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use crate::device::sent;
use crate::pass::Pass;
use crate::slot::{TrackedTensor, Unused};
use crate::tap::{GradientSink, Passed, join, lift};

/// Runs a block for the second time and back. Gets the gradients of its outputs, those that there are, and
/// returns those of the tensors that it computes with.
pub(super) type Rerun =
    Box<dyn FnOnce(Vec<Option<DispatchTensor>>) -> Vec<Option<DispatchTensor>> + Send>;

/// A block's place on the tape: after all of its outputs, and before all that it computes with.
///
/// ```text
/// output 0 --+               +-- input 0
/// output 1 --+--> joint --> link 0 --> link 1 --> ..
/// output 2 --+                          +-- input 1
/// ```
///
/// Every arrow is a tensor of one element, whose gradient says nothing but that it is its turn. So a
/// block may have inputs and outputs of all shapes, dtypes and devices, and an output that the loss does
/// not use has no gradient.
pub(super) struct Joint {
    pass: Arc<Pass>,
    rerun: Mutex<Option<Rerun>>,
    /// Of the outputs.
    arrived: Mutex<Vec<Option<DispatchTensor>>>,
    /// Of what the block computes with.
    found: Mutex<Vec<Option<DispatchTensor>>>,
}

impl Joint {
    pub(super) fn new(pass: Arc<Pass>, rerun: Rerun, outputs: usize) -> Self {
        Self {
            pass,
            rerun: Mutex::new(Some(rerun)),
            arrived: Mutex::new(std::iter::repeat_with(|| None).take(outputs).collect()),
            found: Mutex::default(),
        }
    }

    /// The node of the joint on the tape, between `tracked`, which the block computes with, and the outputs.
    pub(super) fn node(
        self: &Arc<Self>,
        tracked: Vec<TrackedTensor>,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> Tensor<1> {
        let end = Tensor::zeros([1], &device.clone().inner());
        let end = lift(end, strategy).require_grad();
        let links = tracked.into_iter().enumerate().rev();
        let first = links.fold(end, |next, (index, tracked)| {
            let link = Link {
                joint: self.clone(),
                index,
                unused: Mutex::new(tracked.unused),
            };
            join(moved(next, &tracked.device), tracked.tensor, Arc::new(link))
        });
        let nothing = lift(Tensor::<1>::zeros([1], &first.device().inner()), strategy);
        let turn = Arc::new(Turn(self.clone()));
        join(first, nothing.into_dispatch(), turn)
    }

    /// The gradient of an output arrives.
    pub(super) fn arrive(&self, index: usize, gradient: DispatchTensor) {
        self.arrived.lock()[index] = Some(gradient);
    }
}

impl Debug for Joint {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Joint")
    }
}

/// The turn of the block itself.
#[derive(Debug)]
struct Turn(Arc<Joint>);

impl GradientSink for Turn {
    fn receive(&self, signal: DispatchTensor) -> Passed {
        let Self(joint) = self;
        let rerun = joint.rerun.lock().take();
        let rerun = rerun.expect("a backward pass reaches every node once");
        let arrived = std::mem::take(&mut *joint.arrived.lock());
        *joint.found.lock() = joint.pass.guarded(|| rerun(arrived));
        Passed {
            value: Some(signal),
            beside: None,
        }
    }
}

/// The turn of something that the block computes with.
struct Link {
    joint: Arc<Joint>,
    index: usize,
    /// Its gradient if the block does not use it.
    unused: Mutex<Option<Unused>>,
}

impl Debug for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.index)
    }
}

impl GradientSink for Link {
    fn receive(&self, signal: DispatchTensor) -> Passed {
        Passed {
            value: Some(signal),
            beside: self.gradient(),
        }
    }
}

impl Link {
    fn gradient(&self) -> Option<DispatchTensor> {
        let found = self
            .joint
            .found
            .lock()
            .get_mut(self.index)
            .and_then(Option::take);
        found.or_else(|| {
            let zeros = self.unused.lock().take()?;
            self.joint.pass.blocks.leave_unused();
            Some(zeros())
        })
    }
}

/// `tensor` on `device`: the same tensor, if it is there.
pub(super) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    match tensor.device() == *device {
        true => tensor,
        false => sent(tensor, device),
    }
}
