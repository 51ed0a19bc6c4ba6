use std::sync::Arc;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use super::extension::{Delivery, GradientSink, Passed, TapBackend};
use super::sweep;

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
/// pass to pass.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    strategy: GradientCheckpointingStrategy,
    ticks: Vec<Tensor<1>>,
}

impl Clock {
    /// A clock for `reads` parameters.
    pub(crate) fn new(
        device: &Device,
        strategy: GradientCheckpointingStrategy,
        reads: usize,
    ) -> Self {
        let mut clock = Self {
            device: device.clone().inner(),
            strategy,
            ticks: Vec::new(),
        };
        clock.extend_to(reads);
        clock
    }

    /// Whether the ticks can be combined with tensors of this device and strategy.
    pub(crate) fn fits(&self, device: &Device, strategy: GradientCheckpointingStrategy) -> bool {
        self.device == device.clone().inner() && self.strategy == strategy
    }

    /// The tick of the `index`-th read, counted from zero.
    pub(crate) fn tick(&self, index: usize) -> DispatchTensor {
        self.ticks[index].clone().into_dispatch()
    }

    /// Builds the ticks for `reads` parameters, as far as they are not there.
    pub(crate) fn extend_to(&mut self, reads: usize) {
        while self.ticks.len() < reads {
            let last = self.ticks.last().cloned().unwrap_or_else(|| {
                Tensor::from_inner(Tensor::zeros([1], &self.device))
                    .with_gradient_checkpointing_strategy(self.strategy)
            });
            let tick = (0..SPACING).fold(last, |tick, _| deeper(tick));
            self.ticks.push(tick);
            sweep(&self.device);
        }
    }
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
        unreachable!("a clock tick is untracked and gets no gradient")
    }
}
