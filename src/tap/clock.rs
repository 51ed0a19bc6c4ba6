//! Untracked tensors of increasing depth on the autodiff tape ("ticks").
//!
//! # Invariants
//!
//! - Burn's backward pass runs the tape by depth, deepest first. A node is one deeper than its deepest input, tracked or
//!   not. Without a clock the tap of a leaf would have depth 1 and run last, with all gradients alive.
//! - The second input of the tap of a read is the tick at the [`Position`] of the graph, so the tap runs right after its
//!   consumer.
//! - Ticks affect memory. They affect results only where three or more gradients of a tensor deeper than the clock are
//!   added: the order changes.
//! - Ticks are no parents in the graph, and later passes reuse them. Each backward pass of the process visits all of them
//!   and allocates a list for each level of depth, so a clock has no more than one graph needs.

use std::sync::Arc;

use backburn_base::lift;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::{Delivery, GradientSink, PassedGradients, TapBackend, collect_graph, next_operation};

/// Depth between two ticks.
const SPACING: usize = 8;

/// Operations between two ticks. Fewer than the depth, so that the clock overtakes a graph whose inputs are very deep.
const OPERATIONS: u64 = 5;

/// Ticks that the first reads of a graph advance in addition to its operations, because its inputs may be deep.
const FIRST_TICKS: usize = 40;

/// Maximum number of ticks between two reads of a graph: operations of other threads count, too, and levels cost time.
const MOST_TICKS: usize = 8;

/// Maximum number of ticks between two collections.
const MOST_UNCOLLECTED: usize = 512;

/// The ticks of one device and checkpointing strategy.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Device,
    strategy: GradientCheckpointingStrategy,
    ticks: Vec<DispatchTensor>,
    /// A tracked tensor that is deeper in the graph than the ticks of this number of reads.
    bottom: Option<(usize, DispatchTensor)>,
}

/// The clocks of a training, one for each device and checkpointing strategy. Each parameter holds its clock.
#[derive(Clone, Debug, Default)]
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
                bottom: None,
            }));
            self.0.push(clock.clone());
            clock
        })
    }
}

/// The position of a graph on the clock.
#[derive(Debug)]
pub(crate) struct Position {
    /// The index of the tick of the last read.
    tick: usize,
    /// The number of operations in the process when the graph began.
    begun: u64,
}

impl Default for Position {
    fn default() -> Self {
        let (tick, begun) = (0, next_operation());
        Self { tick, begun }
    }
}

impl Clock {
    /// Returns the tick of the next read. An operation adds one level of depth at most, so the tick is deeper than the operations of
    /// the graph so far, at the latest after some more reads.
    pub(crate) fn tick(&mut self, position: &mut Position) -> DispatchTensor {
        let now = next_operation();
        let ticks = usize::try_from((now - position.begun) / OPERATIONS).unwrap_or(usize::MAX / 2);
        let next = position.tick + 1;
        position.tick = (FIRST_TICKS + ticks).clamp(next, position.tick + MOST_TICKS);
        if self.ticks.len() <= position.tick {
            self.extend_to(position.tick);
            // New ticks are not operations of the graph.
            position.begun += next_operation() - now;
        }
        self.ticks[position.tick].clone()
    }

    fn extend_to(&mut self, index: usize) {
        while self.ticks.len() <= index {
            let last = self.ticks.last().cloned();
            let last = last.unwrap_or_else(|| self.start());
            self.ticks.push(next(last));
            self.collect_after(self.ticks.len());
        }
    }

    /// Returns a tracked tensor that is deeper than the ticks of this many reads.
    pub(crate) fn deeper_than(&mut self, reads: usize) -> DispatchTensor {
        let is_deep = |(deep, _): &&(usize, DispatchTensor)| *deep >= reads;
        if let Some((_, leaf_tick)) = self.bottom.as_ref().filter(is_deep) {
            return leaf_tick.clone();
        }
        let deepest = (0..=(reads + 1) * MOST_TICKS).fold(self.start(), |tick, made| {
            self.collect_after(made);
            next(tick)
        });
        let leaf = lift(self.zero(), self.strategy).require_grad();
        let leaf_tick = one_deeper(deepest, leaf.into_dispatch());
        collect_graph(&self.device);
        self.bottom = Some((reads, leaf_tick.clone()));
        leaf_tick
    }

    /// Collects unreachable nodes after every sixteenth of the `ticks`, from 8 to 512. A collection visits all ticks, so one per tick
    /// would take quadratic time.
    fn collect_after(&self, ticks: usize) {
        let every = (ticks / 16).clamp(8, MOST_UNCOLLECTED);
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
    (0..SPACING).fold(tick, |tick, _| one_deeper(tick.clone(), tick))
}

/// Returns the value of `tick` one level deeper than both arguments.
fn one_deeper(tick: DispatchTensor, anchor: DispatchTensor) -> DispatchTensor {
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
    fn clock_overtakes_operations() {
        let mut clocks = Clocks::default();
        let clock = clocks.of(&Device::flex(), GradientCheckpointingStrategy::default());
        let mut position = Position::default();
        let mut advance = || {
            clock.lock().tick(&mut position);
            position.tick
        };
        let mut last = advance();
        // Without reads, then two for each read.
        (0..500).for_each(|_| _ = next_operation());
        for read in 1..100 {
            let tick = advance();
            assert!(tick > last && tick <= last + MOST_TICKS);
            let depth = 500 + 3 * read;
            assert!(read < 10 || (tick + 1) * SPACING > depth, "{read}: {tick}");
            (0..2).for_each(|_| _ = next_operation());
            last = tick;
        }
    }

    #[test]
    fn clock_collects_less_often_than_it_ticks() {
        let device = Device::flex();
        let mut clocks = Clocks::default();
        let clock = clocks.of(&device, GradientCheckpointingStrategy::default());
        let before = collections();
        clock.lock().extend_to(2047);
        let collections = collections() - before;
        assert!(collections <= 256, "{collections}");
    }
}
