use std::sync::Arc;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use super::extension::{Delivery, GradientSink, Passed, TapBackend};
use super::{join, lift, sweep};

/// Depth between two ticks.
///
/// The operations between the reads of two parameters (attention with its softmax, dropout and
/// residual, a normalization, a loss) are fewer than this, so the activations never run far ahead
/// of the clock; where they do, it catches up within a few reads.
const SPACING: usize = 64;

/// Untracked tensors of growing depth on the autodiff tape, one per parameter read.
///
/// Burn's backward pass runs the tape by depth, deepest first, and a node's depth is one more than
/// the largest among its inputs, tracked or not. A tap on a leaf alone would have depth 1 and fire
/// after everything else, with all gradients alive at the end. With tick `k` as its second input,
/// the tap of the `k`-th parameter read sits just below its consumer and fires as soon as the
/// consumer has. Correctness does not depend on it, only memory does.
///
/// Untracked inputs are no graph parents: ticks add nothing to the traversal and are kept from
/// pass to pass. There are no more of them than the reads of one graph need, since every backward pass of the process
/// looks at each.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    strategy: GradientCheckpointingStrategy,
    ticks: Vec<Tensor<1>>,
    /// What is deeper than so many reads, and tracked.
    below: Option<(usize, Tensor<1>)>,
}

impl Clock {
    pub(crate) fn new(device: &Device, strategy: GradientCheckpointingStrategy) -> Self {
        Self {
            device: device.clone().inner(),
            strategy,
            ticks: Vec::new(),
            below: None,
        }
    }

    /// Whether the ticks can be combined with tensors of this device and strategy.
    pub(crate) fn fits(&self, device: &Device, strategy: GradientCheckpointingStrategy) -> bool {
        self.device == device.clone().inner() && self.strategy == strategy
    }

    /// The tick of the `index`-th read, counted from zero.
    pub(crate) fn tick(&mut self, index: usize) -> DispatchTensor {
        while self.ticks.len() <= index {
            let last = self.ticks.last().cloned();
            let last = last.unwrap_or_else(|| self.start());
            self.ticks.push(next(last));
            sweep(&self.device);
        }
        self.ticks[index].clone().into_dispatch()
    }

    /// A tracked tensor that is deeper than the ticks of so many reads.
    pub(crate) fn below(&mut self, reads: usize) -> DispatchTensor {
        let is_deep = |(deep, _): &&(usize, Tensor<1>)| *deep >= reads;
        if let Some((_, below)) = self.below.as_ref().filter(is_deep) {
            return below.clone().into_dispatch();
        }
        let deepest = (0..=reads).fold(self.start(), |tick, _| {
            sweep(&self.device);
            next(tick)
        });
        let leaf = self.start().require_grad();
        let below = join(deepest, leaf.into_dispatch(), Arc::new(Untracked));
        sweep(&self.device);
        self.below = Some((reads, below.clone()));
        below.into_dispatch()
    }

    /// Above all ticks.
    fn start(&self) -> Tensor<1> {
        lift(Tensor::zeros([1], &self.device), self.strategy)
    }
}

/// The tick after this one.
fn next(tick: Tensor<1>) -> Tensor<1> {
    (0..SPACING).fold(tick, |tick, _| deeper(tick))
}

/// The same untracked tensor, one deeper on the tape.
fn deeper(tick: Tensor<1>) -> Tensor<1> {
    let delivery = Delivery {
        sink: Arc::new(Untracked),
        census: None,
    };
    let tick = tick.into_dispatch();
    Tensor::from_dispatch(<Dispatch as TapBackend>::tap(tick.clone(), tick, delivery))
}

#[derive(Debug)]
struct Untracked;

impl GradientSink for Untracked {
    fn receive(&self, _gradient: DispatchTensor) -> Passed {
        unreachable!("nothing passes a gradient on to a clock")
    }
}
