//! Successive calls of one block, like the chunks of a loss. If they keep their activations, autodiff interleaves their backward
//! passes.

use std::ops::Range;

use backburn_memory::{MemoryTimeline, RecomputedBlock};

/// The backward passes of recomputed blocks.
#[derive(Clone, Debug)]
pub(super) struct ConcurrentCalls(Vec<RecordedCall>);

#[derive(Clone, Debug)]
struct RecordedCall {
    /// Index of the row of successive calls.
    row: usize,
    /// Index of the block.
    index: usize,
    backward: Range<f64>,
    /// Peak bytes of its backward pass in addition to its activations.
    bytes: usize,
}

impl ConcurrentCalls {
    pub(super) fn of(timeline: &MemoryTimeline) -> Self {
        // Successive forward calls, before any of them is recomputed.
        let are_concurrent = |a: &RecomputedBlock, b: &RecomputedBlock| {
            a.name == b.name && a.index + 1 == b.index && b.forward < a.backward
        };
        let rows = timeline.blocks.chunk_by(are_concurrent).enumerate();
        let calls = rows.flat_map(|(row, blocks)| {
            blocks.iter().map(move |block| {
                let (backward, bytes) = backward_bytes(timeline, block);
                RecordedCall {
                    row,
                    index: block.index,
                    backward,
                    bytes,
                }
            })
        });
        Self(calls.collect())
    }

    /// Returns the bytes of the backward passes of other calls at this moment, of blocks that are `kept`.
    pub(super) fn at(&self, seconds: f64, kept: impl Fn(usize) -> bool) -> usize {
        let mut calls = self.0.iter().filter(|call| kept(call.index));
        let now = calls.find(|call| call.backward.contains(&seconds));
        now.map_or(0, |now| {
            let calls = self.0.iter().filter(|call| kept(call.index));
            let others = calls.filter(|call| call.row == now.row && call.index != now.index);
            others.map(|call| call.bytes).sum()
        })
    }
}

/// Returns the time range in which the block is recomputed and runs its backward pass.
fn backward_range(timeline: &MemoryTimeline, block: &RecomputedBlock) -> Range<f64> {
    let begins = timeline.blocks.iter().map(|block| block.backward);
    let end = begins.filter(|begin| *begin > block.backward);
    block.backward..end.fold(f64::INFINITY, f64::min)
}

/// Returns the time range of a block's backward pass, and its peak bytes in addition to the activations.
fn backward_bytes(timeline: &MemoryTimeline, block: &RecomputedBlock) -> (Range<f64>, usize) {
    let backward_range = backward_range(timeline, block);
    let begin = timeline
        .samples
        .partition_point(|it| it.seconds <= backward_range.start);
    let samples = timeline.samples[begin.saturating_sub(1)..].iter();
    let mut bytes = samples
        .take_while(|sample| sample.seconds < backward_range.end)
        .map(|sample| sample.bytes.total());
    let held = bytes.next().unwrap_or(0).saturating_add(block.activations);
    let most = bytes.max().unwrap_or(0);
    (backward_range, most.saturating_sub(held))
}
