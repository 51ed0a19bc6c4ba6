use std::fmt::{Display, Formatter};
use std::ops::Range;

use super::MemoryEstimate;
use super::bookkeeping::Bookkeeping;
use crate::error::FusedError;
use crate::memory::{MemoryTimeline, Phase, RecomputedBlock};

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
    /// The peaks of training, from a recording of [dry runs](crate::FusedOptimizer::dry_run) of the model, in which all blocks ran twice.
    ///
    /// The recording tells what a pass holds beside the parameters, what each block would keep if it did not run twice, and when each gradient is
    /// complete. To that are added what the optimizer holds and takes for an update, and what the process keeps for each parameter beside tensors.
    /// What the backend keeps for itself, and what the process held before, is not counted. Layers that are not under
    /// [`gradient_checkpointing`](crate::gradient_checkpointing()) count as activations.
    ///
    /// If the same block is called several times in a row, the calls are taken to be side by side, like the chunks of a
    /// [loss](crate::LinearCrossEntropyLoss). The recording of a [device](crate::memory#on-a-device) has its pools at the moments at which blocks
    /// and gradients come and go, and nothing in between: there the estimate is a lower bound.
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
    /// println!("{}", estimate.peaks(&recorder.finish()?)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the recording is not complete, or not of dry runs of this model, and nothing else.
    pub fn peaks(&self, timeline: &MemoryTimeline) -> Result<PeakEstimate, FusedError> {
        self.check(timeline)?;
        let twice = Curve::of(timeline, |_| 0);
        let beside = Beside::of(timeline);
        let kept = |held: fn(&RecomputedBlock, f64) -> usize| {
            Curve::of(timeline, |seconds| {
                let held = timeline.blocks.iter().map(|block| held(block, seconds));
                held.fold(beside.at(seconds), usize::saturating_add)
            })
        };
        let (stock, kept) = (
            kept(RecomputedBlock::held_in_stock_at),
            kept(RecomputedBlock::held_at),
        );
        let reads = Reads::of(timeline);
        let Bookkeeping { tick, pass, .. } = self.bookkeeping;
        let held = self.parameters + self.optimizer_state;
        let fused = held + self.bookkeeping.fused;
        let of_stock = stock.most_with_gradients.saturating_sub(pass);
        let peak_of = |curve: &Curve, reads: usize| {
            fused + reads * tick + curve.most.max(curve.most_of_updates(self))
        };
        Ok(PeakEstimate {
            stock: held + self.bookkeeping.stock + of_stock.max(self.gradients_and_update),
            fused: peak_of(&kept, reads.in_a_pass),
            recomputed: peak_of(&twice, reads.in_one_graph),
        })
    }

    /// Refuses a recording that tells nothing of this model, or not all.
    fn check(&self, timeline: &MemoryTimeline) -> Result<(), FusedError> {
        if timeline.lost > 0 {
            let lost = timeline.lost;
            return Err(FusedError::IncompleteRecording { lost });
        }
        let unusable = |reason: String| Err(FusedError::UnusableRecording { reason });
        if let Err(error) = timeline.check() {
            return unusable(error.to_string());
        }
        let phases = timeline.marks.iter().map(|mark| &mark.phase);
        let passes = phases.clone().filter(|phase| **phase == Phase::Forward);
        let mut updates = phases.filter(|phase| matches!(phase, Phase::Update { .. }));
        if passes.count() > timeline.dry_runs.len() || updates.next().is_some() {
            return unusable(
                "the recording has a pass that is no dry run, which would count what the optimizer holds twice: record \
                 `dry_run` of the fused optimizer, and nothing else"
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
                "the recording is of a dry run of another model: of {other}, and not of {}. Record this one",
                self.model
            ))
        })
    }
}

/// Bytes over those at the start of a recording.
struct Curve {
    most: usize,
    /// If complete gradients stay, as with stock Burn.
    most_with_gradients: usize,
    /// When gradients were complete, with their bytes.
    at_gradients: Vec<(usize, usize)>,
}

impl Curve {
    /// The curve of passes in which there is so much more at a moment.
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
            // Those of a pass go with it.
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

    /// The most while a parameter is updated in the backward pass.
    fn most_of_updates(&self, estimate: &MemoryEstimate) -> usize {
        let largest = estimate.largest_gradient.max(1) as f64;
        let update = |gradient: usize| estimate.update as f64 * (gradient as f64 / largest);
        let at = self.at_gradients.iter();
        let at = at.map(|(bytes, gradient)| bytes.saturating_add(update(*gradient) as usize));
        at.max().unwrap_or(0)
    }
}

/// What calls of a block side by side would take for their way back while one of them goes back.
struct Beside(Vec<(Range<f64>, usize)>);

impl Beside {
    fn of(timeline: &MemoryTimeline) -> Self {
        // One call after the other, before any has run again.
        let are_beside = |a: &RecomputedBlock, b: &RecomputedBlock| {
            a.name == b.name && a.index + 1 == b.index && b.forward < a.backward
        };
        let mut beside = Vec::new();
        for calls in timeline.blocks.chunk_by(are_beside) {
            let ways: Vec<_> = calls.iter().map(|call| way_back(timeline, call)).collect();
            let all: usize = ways.iter().map(|(_, bytes)| bytes).sum();
            beside.extend(ways.into_iter().map(|(back, own)| (back, all - own)));
        }
        Self(beside)
    }

    fn at(&self, seconds: f64) -> usize {
        let back = self.0.iter().filter(|(back, _)| back.contains(&seconds));
        back.map(|(_, bytes)| bytes).sum()
    }
}

/// How many parameters are read, by the gradients that come of it.
struct Reads {
    in_a_pass: usize,
    /// The most: in the second run of a block, or outside of all.
    in_one_graph: usize,
}

impl Reads {
    fn of(timeline: &MemoryTimeline) -> Self {
        let passes = timeline.dry_runs.len().max(1);
        let of_blocks = timeline.blocks.iter().map(|block| {
            let back = back(timeline, block);
            let gradients = timeline.gradients.iter();
            gradients.filter(|it| back.contains(&it.seconds)).count()
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

/// When this block runs again and back.
fn back(timeline: &MemoryTimeline, block: &RecomputedBlock) -> Range<f64> {
    let begins = timeline.blocks.iter().map(|block| block.backward);
    let end = begins.filter(|begin| *begin > block.backward);
    block.backward..end.fold(f64::INFINITY, f64::min)
}

/// The same, and the most bytes of that beside its activations.
fn way_back(timeline: &MemoryTimeline, block: &RecomputedBlock) -> (Range<f64>, usize) {
    let back = back(timeline, block);
    let begin = timeline
        .samples
        .partition_point(|it| it.seconds <= back.start);
    let samples = timeline.samples[begin.saturating_sub(1)..].iter();
    let mut bytes = samples
        .take_while(|sample| sample.seconds < back.end)
        .map(|sample| sample.bytes.total());
    let held = bytes.next().unwrap_or(0).saturating_add(block.activations);
    let most = bytes.max().unwrap_or(0);
    (back, most.saturating_sub(held))
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
