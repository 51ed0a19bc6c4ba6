use std::sync::Arc;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use super::extension::{Delivery, GradientSink, PassedGradients, TapBackend};
use super::{collect_graph, lift};

/// Depth between two ticks.
///
/// The operations between the reads of two parameters (attention with its softmax, dropout and
/// residual, a normalization, a loss) are fewer than this, so the activations never run far ahead
/// of the clock; where they do, it catches up within a few reads.
const SPACING: usize = 64;

/// The most ticks whose operations are kept before they are collected.
const MOST_UNCOLLECTED: usize = 64;

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
    ticks: Vec<DispatchTensor>,
    /// What is deeper than so many reads, and tracked.
    below: Option<(usize, DispatchTensor)>,
}

/// One for each device and strategy, whose tensors its ticks can be combined with.
#[derive(Debug, Default)]
pub(crate) struct Clocks(Vec<Clock>);

impl Clocks {
    pub(crate) fn of(
        &mut self,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> &mut Clock {
        let device = device.clone().inner();
        let fits = |clock: &Clock| clock.device == device && clock.strategy == strategy;
        let found = self.0.iter().position(fits);
        let clock = found.unwrap_or_else(|| {
            self.0.push(Clock {
                device,
                strategy,
                ticks: Vec::new(),
                below: None,
            });
            self.0.len() - 1
        });
        &mut self.0[clock]
    }
}

impl Clock {
    /// The tick of the `index`-th read, counted from zero.
    pub(crate) fn tick(&mut self, index: usize) -> DispatchTensor {
        while self.ticks.len() <= index {
            let last = self.ticks.last().cloned();
            let last = last.unwrap_or_else(|| self.start());
            self.ticks.push(next(last));
            self.collect_after(self.ticks.len());
        }
        self.ticks[index].clone()
    }

    /// A tracked tensor that is deeper than the ticks of so many reads.
    pub(crate) fn below(&mut self, reads: usize) -> DispatchTensor {
        let is_deep = |(deep, _): &&(usize, DispatchTensor)| *deep >= reads;
        if let Some((_, below)) = self.below.as_ref().filter(is_deep) {
            return below.clone();
        }
        let deepest = (0..=reads).fold(self.start(), |tick, made| {
            self.collect_after(made);
            next(tick)
        });
        let leaf = lift(self.zero(), self.strategy).require_grad();
        let below = deeper(deepest, leaf.into_dispatch());
        collect_graph(&self.device);
        self.below = Some((reads, below.clone()));
        below
    }

    /// Collects abandoned operations after every sixteenth of the `ticks`, 64 at most. A collection visits all ticks, so one for
    /// each tick takes time in the square of their number.
    fn collect_after(&self, ticks: usize) {
        let every = (ticks / 16).clamp(1, MOST_UNCOLLECTED);
        if ticks.is_multiple_of(every) {
            collect_graph(&self.device);
        }
    }

    /// Above all ticks.
    fn start(&self) -> DispatchTensor {
        lift(self.zero(), self.strategy).into_dispatch()
    }

    fn zero(&self) -> Tensor<1> {
        Tensor::zeros([1], &self.device)
    }
}

/// The tick after this one.
fn next(tick: DispatchTensor) -> DispatchTensor {
    (0..SPACING).fold(tick, |tick, _| deeper(tick.clone(), tick))
}

/// The same tensor, one deeper on the tape than both.
fn deeper(tick: DispatchTensor, anchor: DispatchTensor) -> DispatchTensor {
    <Dispatch as TapBackend>::tap(tick, anchor, Delivery(Arc::new(Untracked)))
}

struct Untracked;

impl GradientSink for Untracked {
    fn receive(&self, _gradient: DispatchTensor) -> PassedGradients {
        unreachable!("nothing passes a gradient on to a clock")
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::collections;
    use super::*;

    #[test]
    fn many_reads_collect_less_often_than_they_tick() {
        let device = Device::flex();
        let mut clocks = Clocks::default();
        let clock = clocks.of(&device, GradientCheckpointingStrategy::default());
        let before = collections();
        (0..2048).for_each(|read| drop(clock.tick(read)));
        let collections = collections() - before;
        assert!(collections <= 256, "{collections}");
    }
}
