use super::MemoryEstimate;
use super::bookkeeping::Bookkeeping;
use super::concurrent_calls::{ConcurrentCalls, backward_range};
use crate::error::FusedError;
use crate::memory::{MemoryTimeline, Phase, RecomputedBlock};

impl MemoryEstimate {
    /// Sets the peaks from a recording of [dry runs](crate::FusedOptimizer::dry_run) of the model, in which all blocks were recomputed.
    ///
    /// The recording contains the bytes of a pass in addition to the parameters, the activations of each block, and the times when
    /// gradients are complete. Blocks that are not under [`gradient_checkpointing`](crate::gradient_checkpointing()) count as activations.
    ///
    /// Successive calls of the same block are assumed to run concurrently, like the chunks of a
    /// [loss](crate::LinearCrossEntropyLoss). The recording of a [device](crate::memory#on-a-device) samples its pools only when
    /// blocks begin and end and gradients are complete: there the estimate is a lower bound.
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
    /// let mut fused = FusedOptimizer::new(model, optimizer)?;
    /// fused.dry_run(loss)?; // The first pass of a program starts the threads of the backend.
    /// let recorder = MemoryRecorder::start()?;
    /// fused.dry_run(loss)?;
    /// let estimate = estimate.with_dry_run(&recorder.finish()?)?;
    /// assert!(estimate.recomputed < estimate.fused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the recording is incomplete, or does not contain only dry runs of this model.
    pub fn with_dry_run(self, timeline: &MemoryTimeline) -> Result<Self, FusedError> {
        self.check(timeline)?;
        let recomputed = MemoryCurve::of(timeline, |_| 0);
        let others = ConcurrentCalls::of(timeline);
        let kept = |held: fn(&RecomputedBlock, f64) -> usize| {
            MemoryCurve::of(timeline, |seconds| {
                let held = timeline.blocks.iter().map(|block| held(block, seconds));
                held.fold(others.at(seconds, |_| true), usize::saturating_add)
            })
        };
        let (stock, kept) = (
            kept(RecomputedBlock::held_in_stock_at),
            kept(RecomputedBlock::held_at),
        );
        let reads = Reads::of(timeline);
        let Bookkeeping { tick, pass, .. } = self.bookkeeping;
        let of_stock = stock.most_with_gradients.saturating_sub(pass);
        let held = self.parameters + self.optimizer_state + self.averages;
        let peak_of = |curve: &MemoryCurve, reads: usize| {
            let in_pass = curve.most.max(curve.most_of_updates(&self));
            self.device + self.bookkeeping.fused + reads * tick + in_pass.max(self.transfer)
        };
        Ok(Self {
            stock: held + self.bookkeeping.stock + of_stock.max(self.gradients_and_update),
            fused: peak_of(&kept, reads.in_a_pass),
            recomputed: peak_of(&recomputed, reads.in_one_graph),
            has_dry_run: true,
            ..self
        })
    }

    /// Returns an error if the recording is of another model, or incomplete.
    fn check(&self, timeline: &MemoryTimeline) -> Result<(), FusedError> {
        if timeline.lost > 0 {
            let lost = timeline.lost;
            return Err(FusedError::IncompleteRecording { lost });
        }
        let unusable = |reason: String| Err(FusedError::UnusableRecording { reason });
        let phases = timeline.marks.iter().map(|mark| &mark.phase);
        let passes = phases.clone().filter(|phase| **phase == Phase::Forward);
        let mut updates = phases.filter(|phase| matches!(phase, Phase::Update { .. }));
        if passes.count() > timeline.dry_runs.len() || updates.next().is_some() {
            return unusable(
                "the recording has a pass that is not a dry run, which would count the optimizer state twice: record \
                only `dry_run` of the fused optimizer"
                    .to_string(),
            );
        }
        if timeline.dry_runs.is_empty() {
            return unusable(
                "there is no dry run in the recording: record `dry_run` of the fused optimizer"
                    .to_string(),
            );
        }
        let mut others = timeline.dry_runs.iter().filter(|it| **it != self.model);
        others.next().map_or(Ok(()), |other| {
            unusable(format!(
                "the recording is of a dry run of another model, {other} instead of {}: record this model",
                self.model
            ))
        })
    }
}

/// Bytes in use over a recording, minus those at its start.
struct MemoryCurve {
    most: usize,
    /// Peak if complete gradients are kept, as by stock Burn.
    most_with_gradients: usize,
    /// Bytes in use at each complete gradient, with the bytes of the gradient.
    at_gradients: Vec<(usize, usize)>,
}

impl MemoryCurve {
    /// Returns the curve of passes that hold `more` bytes in addition, as a function of the time.
    fn of(timeline: &MemoryTimeline, more: impl Fn(f64) -> usize) -> Self {
        let mut samples = timeline.samples.iter();
        let start = samples.next().map_or(0, |sample| sample.bytes.total());
        let mut curve = Self {
            most: 0,
            most_with_gradients: 0,
            at_gradients: Vec::new(),
        };
        let mut gradients = timeline.gradients.iter().peekable();
        let (mut complete, mut last) = (0usize, 0usize);
        for sample in samples {
            while let Some(gradient) = gradients.next_if(|it| it.seconds < sample.seconds) {
                curve.at_gradients.push((last, gradient.bytes));
                complete = complete.saturating_add(gradient.bytes);
            }
            // The gradients of a pass are freed with it.
            if let Phase::Forward | Phase::Other = timeline.phase(sample) {
                complete = 0;
            }
            let bytes = sample.bytes.total().saturating_add(more(sample.seconds));
            last = bytes.saturating_sub(start);
            curve.most = curve.most.max(last);
            curve.most_with_gradients =
                curve.most_with_gradients.max(last.saturating_add(complete));
        }
        curve
    }

    /// Returns the peak bytes while a parameter is updated in the backward pass.
    fn most_of_updates(&self, estimate: &MemoryEstimate) -> usize {
        let largest = estimate.largest_gradient.max(1) as f64;
        let update = |gradient: usize| estimate.update as f64 * (gradient as f64 / largest);
        let at = self.at_gradients.iter();
        let at = at.map(|(bytes, gradient)| bytes.saturating_add(update(*gradient) as usize));
        at.max().unwrap_or(0)
    }
}

/// Number of parameters that are read, counted by their gradients.
struct Reads {
    in_a_pass: usize,
    /// The most in one recomputed block, or outside of all blocks.
    in_one_graph: usize,
}

impl Reads {
    fn of(timeline: &MemoryTimeline) -> Self {
        let passes = timeline.dry_runs.len().max(1);
        let of_blocks = timeline.blocks.iter().map(|block| {
            let backward_range = backward_range(timeline, block);
            let gradients = timeline.gradients.iter();
            gradients
                .filter(|it| backward_range.contains(&it.seconds))
                .count()
        });
        let of_blocks: Vec<usize> = of_blocks.collect();
        let all = timeline.gradients.len();
        let outside = all.saturating_sub(of_blocks.iter().sum());
        Self {
            in_a_pass: all / passes,
            in_one_graph: of_blocks.into_iter().fold(outside / passes, usize::max),
        }
    }
}
