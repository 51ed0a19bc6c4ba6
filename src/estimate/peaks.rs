use std::fmt::{Display, Formatter};

use super::MemoryEstimate;
use crate::error::FusedError;
use crate::memory::MemoryTimeline;

/// The most bytes that training will hold, by technique, before the first step.
///
/// From a [`MemoryEstimate`] and the recording of a [dry run](crate::FusedOptimizer::dry_run):
/// [`MemoryEstimate::peaks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeakEstimate {
    /// Of stock Burn: the optimizer after the backward pass.
    pub stock: usize,
    /// Of fused training whose blocks keep their activations.
    pub fused: usize,
    /// Of fused training whose blocks run twice.
    pub recomputed: usize,
}

impl MemoryEstimate {
    /// The peaks of training, given the recording of one [dry run](crate::FusedOptimizer::dry_run) in which all blocks ran twice.
    ///
    /// The recording tells what a pass holds beside the parameters, and what each block would keep if it did not run twice; stock Burn holds
    /// that, or all gradients. Blocks that are not under [`gradient_checkpointing`](crate::gradient_checkpointing()) count as
    /// what they are: activations. What else the process holds is not among them.
    ///
    /// `stock` and `fused` count the outputs of blocks twice, with the block and as the input of the next: they err on the safe side. `stock`
    /// is the larger of the moments before and after the backward pass; where activations lie early in the model and large weights late, it holds
    /// both for a while, up to their sum. The recording must be of a dry run with a configuration that keeps no activations: of a step, it would count
    /// optimizer states twice. Of a [device](crate::memory#on-a-device) it tells what its pools held when blocks and gradients came and went; what
    /// lived between two of these moments is not in it, so there the estimate is a lower bound.
    ///
    /// ```
    /// use backburn::memory::{MemoryRecorder, RecordingAllocator};
    /// use backburn::{FusedOptimizer, MemoryEstimate, gradient_checkpointing};
    /// # use burn::{nn::{Linear, LinearConfig}, optim::AdamConfig, tensor::{Device, Tensor}};
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
    ///
    /// # let device = Device::flex().autodiff();
    /// # let model: Vec<Linear> = (0..4).map(|_| LinearConfig::new(64, 64).init(&device)).collect();
    /// # let loss = |model: &Vec<Linear>| {
    /// #     let x = Tensor::<2>::ones([256, 64], &device);
    /// #     let run = |block: &Linear, x| block.forward(x).tanh();
    /// #     model.iter().fold(x, |x, block| gradient_checkpointing(block, x, run)).mean()
    /// # };
    /// let optimizer = AdamConfig::new().init();
    /// let estimate = MemoryEstimate::new(&model, &optimizer);
    /// let mut fused = FusedOptimizer::new(model, optimizer);
    /// fused.dry_run(loss); // The first pass of a program starts the threads of the backend.
    /// let recorder = MemoryRecorder::start()?;
    /// fused.dry_run(loss);
    /// println!("{}", estimate.peaks(&recorder.finish()?)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the recording is not complete.
    pub fn peaks(&self, timeline: &MemoryTimeline) -> Result<PeakEstimate, FusedError> {
        if timeline.lost > 0 {
            let lost = timeline.lost;
            return Err(FusedError::IncompleteRecording { lost });
        }
        let start = timeline
            .samples
            .first()
            .map_or(0, |sample| sample.bytes.total());
        let most = |kept: &dyn Fn(f64) -> usize| {
            let samples = timeline.samples.iter();
            let bytes = samples.map(|sample| sample.bytes.total() + kept(sample.seconds));
            bytes.max().unwrap_or(start).saturating_sub(start)
        };
        let recomputed = most(&|_| 0);
        let kept = most(&|seconds| {
            let blocks = timeline.blocks.iter();
            let held = blocks.filter(|block| (block.forward..block.backward).contains(&seconds));
            held.map(|block| block.activations).sum()
        });
        let held = self.parameters + self.optimizer_state;
        // An update holds a gradient and what the optimizer makes of it.
        Ok(PeakEstimate {
            stock: held + kept.max(self.gradients + self.largest_gradient),
            fused: held + kept.max(2 * self.largest_gradient),
            recomputed: held + recomputed.max(2 * self.largest_gradient),
        })
    }
}

impl Display for PeakEstimate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        write!(
            f,
            "at the peak: stock {:.0} MB, fused {:.0} MB, fused with blocks that run twice {:.0} MB",
            mega(self.stock),
            mega(self.fused),
            mega(self.recomputed)
        )
    }
}
