use std::sync::Arc;

use backburn_base::lift;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::{Delivery, GradientSink, PassedGradients, TapBackend, collect_graph};

/// Depth between two ticks.
///
/// More than the number of operations between the reads of two parameters (attention with softmax, dropout and
/// residual, a normalization, a loss), so that the depth of the activations does not exceed that of the clock for
/// more than a few reads.
const SPACING: usize = 64;

/// Maximum number of ticks between two collections.
const MOST_UNCOLLECTED: usize = 64;

/// Untracked tensors of increasing depth on the autodiff tape, one per parameter read.
///
/// Burn's backward pass runs the tape by depth, deepest first. The depth of a node is one more than
/// the maximum of its inputs, tracked or not. Without a clock, the tap of a leaf would have depth 1 and fire
/// last, with all gradients alive at the end. With tick `k` as its second input,
/// the tap of the `k`-th parameter read is just below its consumer and fires right after it.
/// The clock affects memory, not results.
///
/// Untracked inputs are not graph parents: ticks add nothing to the traversal and are reused by
/// later passes. Each backward pass of the process visits all ticks, so a clock has no more than the reads of one graph need.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    strategy: GradientCheckpointingStrategy,
    ticks: Vec<DispatchTensor>,
    /// A tracked tensor, with the number of reads whose ticks it is deeper than.
    deeper: Option<(usize, DispatchTensor)>,
}

/// The clocks of a training, one for each device and checkpointing strategy. Each parameter holds its clock.
#[derive(Debug, Default)]
pub(crate) struct Clocks(Vec<Arc<Mutex<Clock>>>);

impl Clocks {
    pub(crate) fn of(
        &mut self,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> Arc<Mutex<Clock>> {
        let device = device.clone().inner();
        let fits = |clock: &Clock| clock.device == device && clock.strategy == strategy;
        let found = self.0.iter().find(|clock| fits(&clock.lock()));
        found.cloned().unwrap_or_else(|| {
            let clock = Arc::new(Mutex::new(Clock {
                device,
                strategy,
                ticks: Vec::new(),
                deeper: None,
            }));
            self.0.push(clock.clone());
            clock
        })
    }
}

impl Clock {
    /// Returns the tick of the `index`-th read, counted from zero.
    pub(crate) fn tick(&mut self, index: usize) -> DispatchTensor {
        while self.ticks.len() <= index {
            let last = self.ticks.last().cloned();
            let last = last.unwrap_or_else(|| self.start());
            self.ticks.push(next(last));
            self.collect_after(self.ticks.len());
        }
        self.ticks[index].clone()
    }

    /// Returns a tracked tensor that is deeper than the ticks of this many reads.
    pub(crate) fn deeper_than(&mut self, reads: usize) -> DispatchTensor {
        let is_deep = |(deep, _): &&(usize, DispatchTensor)| *deep >= reads;
        if let Some((_, leaf_tick)) = self.deeper.as_ref().filter(is_deep) {
            return leaf_tick.clone();
        }
        let deepest = (0..=reads).fold(self.start(), |tick, made| {
            self.collect_after(made);
            next(tick)
        });
        let leaf = lift(self.zero(), self.strategy).require_grad();
        let leaf_tick = deeper(deepest, leaf.into_dispatch());
        collect_graph(&self.device);
        self.deeper = Some((reads, leaf_tick.clone()));
        leaf_tick
    }

    /// Collects unreachable nodes after every sixteenth of the `ticks`, at most 64. A collection visits all ticks, so one per tick
    /// would take quadratic time.
    fn collect_after(&self, ticks: usize) {
        let every = (ticks / 16).clamp(1, MOST_UNCOLLECTED);
        if ticks.is_multiple_of(every) {
            collect_graph(&self.device);
        }
    }

    /// Returns a tensor that is less deep than all ticks.
    fn start(&self) -> DispatchTensor {
        lift(self.zero(), self.strategy).into_dispatch()
    }

    fn zero(&self) -> Tensor<1> {
        Tensor::zeros([1], &self.device)
    }
}

/// Returns the tick after this one.
fn next(tick: DispatchTensor) -> DispatchTensor {
    (0..SPACING).fold(tick, |tick, _| deeper(tick.clone(), tick))
}

/// Returns the value of `tick` one level deeper than both arguments.
fn deeper(tick: DispatchTensor, anchor: DispatchTensor) -> DispatchTensor {
    <Dispatch as TapBackend>::tap(tick, anchor, Delivery(Arc::new(Untracked)))
}

struct Untracked;

impl GradientSink for Untracked {
    fn receive(&self, _gradient: DispatchTensor) -> PassedGradients {
        unreachable!("ticks are untracked and get no gradient")
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::collections;
    use super::*;

    #[test]
    fn clock_collects_less_often_than_it_ticks() {
        let device = Device::flex();
        let mut clocks = Clocks::default();
        let clock = clocks.of(&device, GradientCheckpointingStrategy::default());
        let before = collections();
        (0..2048).for_each(|read| drop(clock.lock().tick(read)));
        let collections = collections() - before;
        assert!(collections <= 256, "{collections}");
    }
}
