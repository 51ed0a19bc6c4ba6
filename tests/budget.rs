//! Tests of the memory that checkpointed blocks save, and of blocks that are chosen for a budget.
//!
//! A process of its own: it installs the recording allocator.

mod common;

use std::sync::Mutex;

use backburn::memory::{MemoryRecorder, MemoryTimeline, RecordingAllocator};

use crate::common::*;

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

/// One test at a time: they share the log.
static ALONE: Mutex<()> = Mutex::new(());

const WIDTH: usize = 192;
const DEPTH: usize = 6;

/// One recorded step of a stack with recomputed layers, after one that is not.
fn record_recomputed(config: GradientCheckpointingConfig, sizes: [usize; DEPTH]) -> MemoryTimeline {
    let device = Device::flex().autodiff();
    let linear = |_| LinearConfig::new(WIDTH, WIDTH).init(&device);
    let model: Vec<Linear> = (0..DEPTH).map(linear).collect();
    let mut fused = FusedOptimizer::new_ok(model, AdamConfig::new().init())
        .with_config_ok(FusedConfig::new().with_gradient_checkpointing(config));
    let x = Tensor::<2>::random([64, WIDTH], Distribution::Default, &device);
    let mut step = || {
        fused.step_ok(1e-3, |model| {
            let mut x = x.clone();
            for (linear, size) in model.iter().zip(sizes) {
                // Several activations of the same size.
                let run = move |linear: &Linear, x| {
                    (0..size).fold(linear.forward(x), |x, _| Gelu::new().forward(x))
                };
                x = gradient_checkpointing(linear, x, run);
            }
            x.powi_scalar(2).mean()
        });
    };
    step();
    let recorder = MemoryRecorder::start().unwrap();
    step();
    recorder.finish().unwrap()
}

#[test]
fn a_recording_tells_the_activations_of_recomputed_blocks() {
    let _alone = ALONE.lock();
    let timeline = record_recomputed(GradientCheckpointingConfig::new(), [1, 1, 4, 1, 1, 1]);
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

/// The peak of a recording, without what the process held before: the recordings of this test, too.
fn above_start(timeline: &MemoryTimeline) -> usize {
    timeline.peak().bytes.total() - timeline.samples[0].bytes.total()
}

#[test]
fn a_step_stays_within_the_budget_that_its_blocks_were_chosen_for() {
    let _alone = ALONE.lock();
    let sizes = [1, 6, 1, 3, 1, 2];
    let all = record_recomputed(GradientCheckpointingConfig::new(), sizes);
    let least = all.peak().bytes.total();
    let mut kept_before = 0;
    for extra in [0, 50_000, 100_000, 200_000, 400_000, 800_000] {
        let budget = least + extra;
        let config = GradientCheckpointingConfig::for_budget(&all, budget).unwrap();
        let keep = config.keep_activations.clone();
        let kept = keep.iter().filter(|keep| **keep).count();
        // What runs last is needed at once, so it costs nothing.
        assert!(keep[DEPTH - 1] && kept >= kept_before, "{keep:?}");
        kept_before = kept;
        let peak = above_start(&record_recomputed(config, sizes));
        let allowed = above_start(&all) + extra;
        assert!(peak <= allowed, "{extra}: {peak} bytes, {allowed} allowed");
    }
    assert!(kept_before > 3, "{kept_before} of {DEPTH} fit");
    let everything = GradientCheckpointingConfig::for_budget(&all, usize::MAX).unwrap();
    assert_eq!(everything.keep_activations, [true; DEPTH]);
    // Which is more than a budget that keeps some: the choice is one.
    let peak = above_start(&record_recomputed(everything, sizes));
    assert!(peak > above_start(&all) + 400_000, "{peak} bytes");
    // And hardly more is asked for than that takes: what a block returns is there in any case, and comes again in its second run.
    let output = 4 * 64 * WIDTH;
    let budget = least + peak - above_start(&all) + output + peak / 50;
    let again = GradientCheckpointingConfig::for_budget(&all, budget).unwrap();
    assert_eq!(again.keep_activations, [true; DEPTH]);

    let error = GradientCheckpointingConfig::for_budget(&all, least - 1).unwrap_err();
    let budget = least - 1;
    assert_eq!(error, FusedError::Budget { budget, least });
    let plain = record_recomputed(
        GradientCheckpointingConfig::new().with_keep_activations(vec![true; DEPTH]),
        sizes,
    );
    let error = GradientCheckpointingConfig::for_budget(&plain, usize::MAX).unwrap_err();
    assert_eq!(error, FusedError::NoBlocks);
}
