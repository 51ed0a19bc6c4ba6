//! The activations of recomputed blocks in a recording.
//!
//! It runs in its own process, because it installs the recording allocator.

mod common;

use backburn::memory::{MemoryRecorder, MemoryTimeline, RecordingAllocator};

use crate::common::*;

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

const WIDTH: usize = 192;
const DEPTH: usize = 6;

/// One recorded step of a stack with recomputed layers, after a step that is not recorded.
fn record_recomputed(sizes: [usize; DEPTH]) -> MemoryTimeline {
    let device = Device::flex().autodiff();
    let model = linears(DEPTH, WIDTH, &device);
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let x = Tensor::<2>::random([64, WIDTH], Distribution::Default, &device);
    let mut step = || {
        fused
            .step(1e-3, |model| {
                let mut x = x.clone();
                for (linear, size) in model.iter().zip(sizes) {
                    // Several activations of the same size.
                    let run = move |linear: &Linear, x| {
                        (0..size).fold(linear.forward(x), |x, _| Gelu::new().forward(x))
                    };
                    x = gradient_checkpointing(linear, x, run);
                }
                x.powi_scalar(2).mean()
            })
            .unwrap();
    };
    step();
    let recorder = MemoryRecorder::start().unwrap();
    step();
    recorder.finish().unwrap()
}

#[test]
fn recorded_blocks_have_their_activations() {
    let timeline = record_recomputed([1, 1, 4, 1, 1, 1]);
    let indices: Vec<_> = timeline.blocks.iter().map(|block| block.index).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    for pair in timeline.blocks.windows(2) {
        assert!(pair[0].forward < pair[1].forward);
        assert!(pair[0].backward > pair[1].backward);
    }
    let size = 4 * 64 * WIDTH;
    for block in &timeline.blocks {
        let layer = format!("`{}` (`burn_nn", block.index);
        assert!(block.name.starts_with(&layer), "{}", block.name);
        // The outputs of the layer and of the activation functions after it.
        let expected = size * if block.index == 2 { 5 } else { 2 };
        let error = block.activations.abs_diff(expected) as f64 / expected as f64;
        assert!(error <= 0.1, "{block:?}, {expected} bytes expected");
    }
}
