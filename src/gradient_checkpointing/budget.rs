use std::collections::BTreeSet;

use crate::error::FusedError;
use crate::memory::MemoryTimeline;
use crate::pass::GradientCheckpointingConfig;

impl GradientCheckpointingConfig {
    /// Selects the fewest blocks to recompute so that a step takes at most `budget` bytes, from
    /// a recording of steps in which all blocks were recomputed.
    ///
    /// Blocks keep their activations where they fit, from the last block to the first. The activations of the last blocks are
    /// freed first in the backward pass.
    ///
    /// The budget counts the bytes of the recording: with the
    /// [`RecordingAllocator`](crate::memory::RecordingAllocator) all memory of the process; on a device
    /// the memory in use in its pools when a phase or a block begins, so leave a margin for temporary tensors.
    /// The first step of an optimizer allocates its state: record the second one. The recording
    /// must be of the same model: blocks are identified by the order of their calls.
    ///
    /// ```
    /// use backburn::memory::{MemoryRecorder, RecordingAllocator};
    /// use backburn::{FusedConfig, FusedOptimizer, GradientCheckpointingConfig, gradient_checkpointing};
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, optim::AdamConfig, tensor::{Device, Tensor}};
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
    ///
    /// # let device = Device::flex().autodiff();
    /// # let model: Vec<Linear> = (0..4).map(|_| LinearConfig::new(64, 64).init(&device)).collect();
    /// # let forward = |model: &Vec<Linear>| {
    /// #     let x = Tensor::<2>::ones([256, 64], &device);
    /// #     let run = |block: &Linear, x| block.forward(x).tanh();
    /// #     model.iter().fold(x, |x, block| gradient_checkpointing(block, x, run)).mean()
    /// # };
    /// let mut fused = FusedOptimizer::new(model, AdamConfig::new().init())?;
    /// fused.step(1e-3, forward)?;
    /// let recorder = MemoryRecorder::start()?;
    /// fused.step(1e-3, forward)?;
    /// let timeline = recorder.finish()?;
    ///
    /// let budget = timeline.peak().bytes.total() + 110_000;
    /// let config = GradientCheckpointingConfig::for_budget(&timeline, budget)?;
    /// assert_eq!(config.keep_activations, [false, false, true, true]);
    /// let mut fused = fused.with_config(FusedConfig::new().with_gradient_checkpointing(config))?;
    /// fused.step(1e-3, forward)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the recording is incomplete, has no recomputed block, or has a peak above the budget with all blocks
    /// recomputed.
    pub fn for_budget(timeline: &MemoryTimeline, budget: usize) -> Result<Self, FusedError> {
        if timeline.lost > 0 {
            let lost = timeline.lost;
            return Err(FusedError::IncompleteRecording { lost });
        }
        let Some(last) = timeline.blocks.iter().map(|block| block.index).max() else {
            return Err(FusedError::NoBlocks);
        };
        let mut planned: Vec<usize> = timeline.samples.iter().map(|s| s.bytes.total()).collect();
        let least = timeline.peak().bytes.total();
        if least > budget {
            return Err(FusedError::Budget { budget, least });
        }
        let mut keep = vec![false; last + 1];
        let indices: BTreeSet<usize> = timeline.blocks.iter().map(|block| block.index).collect();
        for index in indices.into_iter().rev() {
            let runs = timeline.blocks.iter().filter(|block| block.index == index);
            let mut with = planned.clone();
            for block in runs {
                let samples = timeline.samples.iter().zip(&mut with);
                samples.for_each(|(sample, bytes)| {
                    *bytes = bytes.saturating_add(block.held_at(sample.seconds));
                });
            }
            if with.iter().all(|bytes| *bytes <= budget) {
                (keep[index], planned) = (true, with);
            }
        }
        Ok(Self::new().with_keep_activations(keep))
    }
}
