//! Measures passes over more and more items, within a budget.

use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;

use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::FusedOptimizer;
use crate::loss::Loss;
use crate::memory::{self, MemoryRecorder, MemoryTimeline};

use super::error::PlanError;
use super::pass::{Kept, Pass, Run, Twice};

/// More blocks than a step has of which no recording has told the number.
const MANY: usize = 1 << 12;

/// Bytes that the first pass takes at least for threads of the backend, activations and notes.
pub(super) const AT_FIRST: usize = 1 << 19;

/// A model whose passes are measured.
pub(super) struct Climber<'a, M: Module, F> {
    pub(super) fused: &'a mut FusedOptimizer<M>,
    pub(super) loss: &'a F,
    pub(super) device: &'a Device,
    /// Bytes of the largest gradient.
    pub(super) largest: usize,
    /// By which part one pass was larger than another over as many items: what threads compute at once is not always the same.
    pub(super) spread: Option<f64>,
}

/// A pass of at least so many bytes is run again, to see how it spreads, if it takes no more than so many seconds.
const TELLING: (usize, f64) = (1 << 21, 2.0);

impl<M, L, F> Climber<'_, M, F>
where
    M: Module,
    L: Loss,
    F: Fn(&M, usize) -> L,
{
    /// Measures passes over each of `sizes`, the smallest first, as long as the next one is expected to take no more than
    /// `room` bytes, with blocks that run twice and with blocks that don't.
    pub(super) fn climb(&mut self, sizes: &[usize], room: usize) -> Result<Vec<Pass>, PlanError> {
        let mut passes: Vec<Pass> = Vec::new();
        // Nobody knows what the first pass takes beside gradients.
        if memory::live(self.device)? + 2 * self.largest + AT_FIRST > room {
            return Ok(passes);
        }
        for &items in sizes {
            let twice = |pass: &Pass| {
                let run = pass.twice.as_ref().map(|twice| twice.run);
                run.or(pass.kept)
            };
            let (of_twice, of_kept) = (
                self.expected(&passes, items, twice),
                self.expected(&passes, items, |pass| pass.kept),
            );
            let no_blocks = passes.first().is_some_and(|pass| pass.twice.is_none());
            let mut pass = Pass {
                items,
                kept: None,
                twice: None,
                tried: Vec::new(),
            };
            if !no_blocks && of_twice.is_none_or(|bytes| bytes <= room) {
                let (timeline, run) = self.passes(items, Vec::new())?;
                pass.twice = Twice::of(timeline, run);
                if pass.twice.is_none() {
                    pass.kept = Some(run);
                }
            }
            if let (Some(twice), Some(share)) = (&mut pass.twice, share(&passes)) {
                twice.fear(share);
            }
            let fits = match (&pass.twice, of_kept) {
                (Some(twice), of_kept) => {
                    let of_blocks = with_margin(twice.run.start, twice.peak_of_all());
                    of_kept.unwrap_or(0).max(of_blocks) <= room
                }
                (None, of_kept) => of_kept.is_some_and(|bytes| bytes <= room),
            };
            if pass.kept.is_none() && fits {
                let keep = vec![true; pass.twice.as_ref().map_or(MANY, Twice::count)];
                let (_, run) = self.passes(items, keep.clone())?;
                pass.note(keep, run);
            }
            if pass.kept.is_none() && pass.twice.is_none() {
                break;
            }
            passes.push(pass);
        }
        Ok(passes)
    }

    /// The bytes that a pass over `items` is expected to take, from those over fewer.
    fn expected(
        &self,
        passes: &[Pass],
        items: usize,
        of: impl Fn(&Pass) -> Option<Run>,
    ) -> Option<usize> {
        let mut known = passes
            .iter()
            .filter_map(|pass| of(pass).map(|run| (pass.items, run)));
        let (many, last) = known.next_back()?;
        // Of the gradients in it are no more for more items: one comes into being beside another.
        let in_backward = last.peak - last.forward.max(last.start);
        let fixed = in_backward.min(2 * self.largest);
        let in_proportion = (last.peak - last.start - fixed) as f64 / many as f64;
        // A line through two sizes would be less, and wrong where other sizes are computed in other ways.
        let grows = known.next_back().map_or(in_proportion, |(few, before)| {
            let more = (last.peak - last.start).saturating_sub(before.peak - before.start);
            in_proportion.max(more as f64 / (many - few) as f64)
        });
        let expected = last.peak + (grows * (items - many) as f64) as usize;
        Some(with_margin(last.start, expected))
    }

    /// Runs a pass with these blocks, and learns from it.
    pub(super) fn check(&mut self, pass: &mut Pass, kept: &Kept) -> Result<(), PlanError> {
        let (_, run) = self.pass(pass.items, kept.keep.clone())?;
        pass.note(kept.keep.clone(), run);
        Ok(())
    }

    /// A pass over the batch as stock Burn does it.
    pub(super) fn stock(&mut self, items: usize) -> Result<Run, PlanError> {
        let model = self.fused.model();
        let (_, run) = recorded(self.device, || {
            let loss = (self.loss)(&model, items);
            if !loss.has_graph() {
                return Err(FusedError::LossNotTracked);
            }
            drop(loss.go_back(None, None));
            Ok(())
        })?;
        Ok(run)
    }

    /// A pass whose blocks keep their activations as `keep` says; the first that is large, three times: then the largest.
    fn passes(
        &mut self,
        items: usize,
        keep: Vec<bool>,
    ) -> Result<(MemoryTimeline, Run), PlanError> {
        let mut largest = self.pass(items, keep.clone())?;
        let (bytes, seconds) = (largest.1.in_pass(), largest.1.seconds);
        if self.spread.is_some() || bytes < TELLING.0 || seconds > TELLING.1 {
            return Ok(largest);
        }
        let mut least = bytes;
        for _ in 1..3 {
            let again = self.pass(items, keep.clone())?;
            least = least.min(again.1.in_pass());
            if again.1.in_pass() > largest.1.in_pass() {
                largest = again;
            }
        }
        self.spread = Some(largest.1.in_pass() as f64 / least as f64 - 1.0);
        Ok(largest)
    }

    /// A pass whose blocks keep their activations as `keep` says.
    fn pass(&mut self, items: usize, keep: Vec<bool>) -> Result<(MemoryTimeline, Run), PlanError> {
        let config: FusedConfig = self.fused.config().clone();
        let blocks = config
            .gradient_checkpointing
            .clone()
            .with_keep_activations(keep);
        self.fused
            .try_set_config(config.with_gradient_checkpointing(blocks))?;
        let mut once = || {
            recorded(self.device, || {
                self.fused
                    .try_dry_run(|model| (self.loss)(model, items))
                    .map(drop)
            })
        };
        let (timeline, run) = once()?;
        match run.warms_up(&timeline) {
            true => once(),
            false => Ok((timeline, run)),
        }
    }
}

fn recorded(
    device: &Device,
    pass: impl FnOnce() -> Result<(), FusedError>,
) -> Result<(MemoryTimeline, Run), PlanError> {
    let recorder = MemoryRecorder::start_peaks(device)?;
    let begun = Instant::now();
    recorder.forward(pass)?;
    let seconds = begun.elapsed().as_secs_f64();
    let timeline = recorder.finish()?;
    let run = Run::of(&timeline, seconds);
    Ok((timeline, run))
}

/// What a pass that begins with `start` bytes is feared to take, if `peak` is expected.
fn with_margin(start: usize, peak: usize) -> usize {
    peak + peak.saturating_sub(start) / 10
}

/// What has been learned of blocks that keep their activations.
fn share(passes: &[Pass]) -> Option<f64> {
    let last = passes.iter().rev().find(|pass| pass.kept.is_some())?;
    last.twice.as_ref().map(Twice::share)
}
