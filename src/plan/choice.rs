//! What a training takes with some techniques, and which of these ways costs least.

use crate::optim::{StateFormat, WeightFormat};

use super::measured::Measured;
use super::optimizer::PlannedOptimizer;
use super::pass::{Kept, Run};
use super::technique::Technique;
use super::width::{Beside, Formats};

/// The techniques that are allowed on a rung.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// The one that the rung before does not have.
    pub(super) last: Option<Technique>,
    pub(super) states: Option<StateFormat>,
    pub(super) weights: Option<WeightFormat>,
    pub(super) waits: Option<Technique>,
    blocks: bool,
    parts: bool,
    /// Whether more micro-batches come before blocks that run twice.
    parts_first: bool,
}

/// A way to train.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) width: usize,
    pub(super) pass: usize,
    pub(super) kept: Kept,
    pub(super) accumulation: usize,
    /// Bytes at the peak where the model computes, and on the host if that is not the same.
    pub(super) device: usize,
    pub(super) host: usize,
    /// Of a step.
    pub(super) seconds: f64,
}

impl Level {
    pub(super) fn of(techniques: &[Technique]) -> Self {
        let place = |technique| techniques.iter().position(|it| *it == technique);
        let (blocks, parts) = (place(Technique::Blocks), place(Technique::MicroBatches));
        let last = |of: fn(&Technique) -> bool| techniques.iter().rev().copied().find(of);
        Self {
            last: techniques.last().copied(),
            states: techniques.iter().filter_map(|it| it.states()).next_back(),
            weights: techniques.iter().filter_map(|it| it.weights()).next_back(),
            waits: last(|it| it.waits()),
            blocks: blocks.is_some(),
            parts: parts.is_some(),
            parts_first: parts.is_some_and(|parts| blocks.is_none_or(|blocks| parts < blocks)),
        }
    }

    pub(super) fn formats(&self) -> Formats {
        (self.states, self.weights)
    }
}

impl<O: PlannedOptimizer> Measured<O> {
    /// The way on this rung that costs least and fits.
    pub(super) fn choice(&self, level: &Level, budget: usize) -> Option<Choice> {
        let place = self.width_of(level)?;
        let passes = self.passes(level, place);
        let plain = |&pass: &usize| self.plain(level, place, pass, budget);
        let blocks = |&pass: &usize| self.with_blocks(level, place, pass, budget);
        if level.parts_first {
            let found = passes.iter().find_map(plain);
            return found.or_else(|| passes.iter().find_map(blocks));
        }
        let either = |pass: &usize| plain(pass).or_else(|| blocks(pass));
        passes.iter().find_map(either)
    }

    /// The way on this rung that takes least.
    pub(super) fn least(&self, level: &Level) -> Option<Choice> {
        let place = self.width_of(level)?;
        let all = self.passes(level, place).into_iter().flat_map(|pass| {
            let plain = self.plain(level, place, pass, usize::MAX);
            [plain, self.all_twice(level, place, pass)]
        });
        all.flatten().min_by_key(|choice| choice.device)
    }

    /// All blocks of this pass run twice.
    pub(super) fn all_twice(&self, level: &Level, width: usize, pass: usize) -> Option<Choice> {
        let twice = self.widths[width].passes[pass].twice.as_ref()?;
        let kept = Kept {
            keep: vec![false; twice.count()],
            run: twice.run,
        };
        level.blocks.then_some(())?;
        self.of(level, width, pass, kept)
    }

    /// No block of this pass runs twice, and that fits.
    pub(super) fn plain(
        &self,
        level: &Level,
        width: usize,
        pass: usize,
        budget: usize,
    ) -> Option<Choice> {
        let kept = self.widths[width].passes[pass].none_twice()?;
        self.of(level, width, pass, kept)
            .filter(|choice| choice.device <= budget)
    }

    /// As few blocks of this pass run twice as fits.
    fn with_blocks(
        &self,
        level: &Level,
        width: usize,
        pass: usize,
        budget: usize,
    ) -> Option<Choice> {
        level.blocks.then_some(())?;
        let (beside, _) = self.beside(level, width, pass)?;
        let passes = &self.widths[width].passes;
        let start = passes[pass].twice.as_ref()?.run.start;
        let room = budget.checked_sub(beside.device)?;
        // What is there when the pass begins is known.
        let room = room.checked_sub(self.widths[width].floor())?;
        let room = start + (room as f64 / self.margin) as usize;
        let kept = passes[pass].fewest_twice(room)?;
        self.of(level, width, pass, kept)
            .filter(|choice| choice.device <= budget)
    }

    fn of(&self, level: &Level, width: usize, pass: usize, kept: Kept) -> Option<Choice> {
        let (beside, accumulation) = self.beside(level, width, pass)?;
        let Run {
            start,
            peak,
            seconds,
            ..
        } = kept.run;
        let in_a_pass = (peak.saturating_sub(start)) as f64 * self.margin;
        Some(Choice {
            width,
            pass,
            accumulation,
            device: self.widths[width].floor() + in_a_pass.ceil() as usize + beside.device,
            host: beside.host,
            seconds: in_micros(accumulation as f64 * seconds + beside.seconds),
            kept,
        })
    }

    fn beside(&self, level: &Level, width: usize, pass: usize) -> Option<(Beside, usize)> {
        let width = &self.widths[width];
        let accumulation = self.batch / width.passes[pass].items;
        let offload = self.offload(level);
        let beside = width.beside(
            level.formats(),
            accumulation,
            &self.config,
            offload.as_ref(),
        )?;
        Some((beside, accumulation))
    }

    fn width_of(&self, level: &Level) -> Option<usize> {
        let is_bf16 = level.weights.is_some();
        self.widths
            .iter()
            .position(|width| width.dtype.is_some() == is_bf16)
    }

    /// The passes that a rung may use, the largest first.
    pub(super) fn passes(&self, level: &Level, width: usize) -> Vec<usize> {
        let passes = self.widths[width].passes.iter().enumerate().rev();
        let allowed = passes.filter(|(_, pass)| level.parts || pass.items == self.batch);
        allowed.map(|(place, _)| place).collect()
    }
}

/// Whole microseconds, so that JSON reads back what was written.
pub(super) fn in_micros(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}
