//! What a training takes with some techniques, and which of these ways costs least.

use crate::config::FusedConfig;

use super::ladder::in_millionths;
use super::level::Level;
use super::pass::{Kept, Pass, Run};
use super::technique::Technique;
use super::twice::Twice;
use super::width::{Beside, Footing, Sums, Width};

/// The margin where each byte is counted: what threads compute at once differs from run to run.
pub(super) const AT_ONCE: f64 = 1.01;

/// The margin at best: a pass may hold less in a step than it did alone.
const HOPED: f64 = 0.97;

/// What threads keep for themselves differs from run to run by about so many bytes.
const SLACK: usize = 1 << 17;

/// And if steps were made.
const SEEN_SLACK: usize = 1 << 15;

/// Which pass a rank goes through, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) width: usize,
    pub(super) pass: usize,
    pub(super) ranks: usize,
    /// How often in a step.
    pub(super) accumulation: usize,
}

/// A way to train.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) part: Part,
    pub(super) kept: Kept,
    /// Bytes at the peak where the model computes, and on the host if that is not the same.
    pub(super) device: usize,
    pub(super) host: usize,
    /// Of a step.
    pub(super) seconds: f64,
}

/// What was measured of a training, and what it is reckoned with.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Items in a step.
    pub(super) batch: usize,
    /// How it is trained beside.
    pub(super) config: FusedConfig,
    /// What a pass is taken to hold, in parts of what was measured.
    pub(super) margin: f64,
    /// Bytes that a training is taken to hold beside what is known of it.
    pub(super) slack: usize,
    pub(super) widths: Vec<Width>,
}

impl Part {
    /// The batch as it is.
    pub(super) const WHOLE: Self = Self {
        width: 0,
        pass: 0,
        ranks: 1,
        accumulation: 1,
    };
}

impl Facts {
    /// Nothing yet, where each byte is counted.
    pub(super) fn new(batch: usize, config: FusedConfig) -> Self {
        Self {
            batch,
            config,
            margin: AT_ONCE,
            slack: SLACK,
            widths: Vec::new(),
        }
    }

    /// The way on this rung that costs least and fits.
    pub(super) fn choice(&self, level: &Level, budget: usize) -> Option<Choice> {
        let parts = self.parts(level);
        let first = |blocks| {
            let mut parts = parts.iter();
            parts.find_map(|part| self.way(level, *part, blocks, budget))
        };
        let without = level.parts_first.then(|| first(false)).flatten();
        without.or_else(|| first(level.blocks))
    }

    /// The way on this rung that takes least.
    pub(super) fn least(&self, level: &Level) -> Option<Choice> {
        let parts = self.parts(level).into_iter();
        let all = parts.flat_map(|part| {
            let none = self.pass(part).none_twice();
            let none = none.and_then(|kept| self.of(level, part, kept));
            [none, self.all_twice(level, part)]
        });
        all.flatten().min_by_key(|choice| choice.device)
    }

    /// What the technique that `level` adds would bring at most.
    pub(super) fn at_most(&self, level: &Level) -> Option<Choice> {
        match level.last? {
            Technique::Blocks => self.all_twice(level, *self.parts(level).first()?),
            Technique::MicroBatches | Technique::Ranks => self.least(level),
            _ => None,
        }
    }

    /// All blocks of this pass run twice.
    fn all_twice(&self, level: &Level, part: Part) -> Option<Choice> {
        let kept = self.pass(part).all_twice();
        self.of(level, part, kept.filter(|_| level.blocks)?)
    }

    /// No block of this pass runs twice, or as few as fits.
    fn way(&self, level: &Level, part: Part, blocks: bool, budget: usize) -> Option<Choice> {
        let pass = self.pass(part);
        let kept = if blocks && let Some(twice) = &pass.twice {
            // What is there when the pass begins is known.
            let known = self.beside(level, part)?.device + self.floor(part);
            let room = budget.saturating_sub(known) as f64 / self.margin;
            let fits = |kept: &Kept| {
                let choice = self.of(level, part, kept.clone());
                choice.is_some_and(|choice| choice.device <= budget)
            };
            pass.fewest_twice(twice.run.start.saturating_add(room as usize), fits)
        } else {
            pass.none_twice()
        };
        let choice = self.of(level, part, kept?)?;
        (choice.device <= budget).then_some(choice)
    }

    fn of(&self, level: &Level, part: Part, kept: Kept) -> Option<Choice> {
        let beside = self.beside(level, part)?;
        let Run { seconds, .. } = kept.run;
        let in_pass = kept.run.in_pass() as f64;
        let device = match self.seen(level, part, &kept.keep) {
            Some(bytes) => {
                bytes.saturating_add((in_pass * (self.margin - AT_ONCE).max(0.0)) as usize)
            }
            None => {
                let known = self.floor(part) + beside.device;
                known.saturating_add((in_pass * self.margin).ceil() as usize)
            }
        };
        Some(Choice {
            part,
            device,
            host: beside.host,
            seconds: in_millionths(part.accumulation as f64 * seconds + beside.seconds),
            kept,
        })
    }

    /// Bytes that steps on this part have taken, with what the optimizer holds for them.
    fn seen(&self, level: &Level, part: Part, keep: &[bool]) -> Option<usize> {
        let steps = self.pass(part).rehearsed(keep, part.accumulation > 1)?;
        let held = self.optimizers(level, part)?;
        let notes = self.widths[part.width].notes;
        Some(steps + held.saturating_sub(notes) + SEEN_SLACK)
    }

    /// Bytes that the optimizer holds, and takes for an update.
    pub(super) fn optimizers(&self, level: &Level, part: Part) -> Option<usize> {
        let states = self.widths[part.width].states_in(level.formats())?;
        Some(states.sum() + states.update)
    }

    /// Whether steps on this part can tell what it takes: without what an optimizer holds they stay within `budget`.
    pub(super) fn can_rehearse(&self, level: &Level, choice: &Choice, budget: usize) -> bool {
        let Choice { part, kept, .. } = choice;
        let is_plain = part.ranks == 1 && level.waits.is_none() && !level.in_state;
        let is_plain = is_plain && self.config.averaging.is_none();
        let is_new = !self
            .pass(*part)
            .is_rehearsed(&kept.keep, part.accumulation > 1);
        let feared = self.of(level, *part, kept.clone());
        let steps = feared.zip(self.optimizers(level, *part));
        let stays = steps.is_some_and(|(feared, held)| feared.device - held <= budget);
        is_plain && is_new && stays && self.widths[part.width].shared == 0
    }

    /// The same, for what would be if all went well.
    pub(super) fn hoped(&self) -> Self {
        Self {
            margin: HOPED,
            slack: 0,
            ..self.with(Twice::hope)
        }
    }

    /// The same for fewer bytes, for which nothing was tried.
    pub(super) fn untried(&self) -> Self {
        self.with(Twice::fear)
    }

    fn with(&self, change: impl FnMut(&mut Twice)) -> Self {
        let mut facts = self.clone();
        let passes = facts.widths.iter_mut().flat_map(|it| &mut it.passes);
        let twice = passes.filter_map(|pass| pass.twice.as_mut());
        twice.for_each(change);
        facts
    }

    /// What is held when a pass on this part begins, without the optimizer.
    fn floor(&self, part: Part) -> usize {
        self.widths[part.width].floor() + self.slack
    }

    fn beside(&self, level: &Level, part: Part) -> Option<Beside> {
        let sums = if part.accumulation == 1 || level.in_state {
            Sums::None
        } else if self.config.full_precision_accumulation {
            Sums::InFull
        } else {
            Sums::AsParameter
        };
        let (formats, offload) = (level.formats(), level.offload());
        self.widths[part.width].beside(formats, sums, &self.config, offload.as_ref(), part.ranks)
    }

    pub(super) fn pass(&self, part: Part) -> &Pass {
        &self.widths[part.width].passes[part.pass]
    }

    /// What was measured so.
    pub(super) fn place(&self, footing: Footing) -> Option<usize> {
        self.widths.iter().position(|it| it.footing == footing)
    }

    /// The parts of the batch that a rung may use, the largest first, each on as many ranks as there are for it.
    fn parts(&self, level: &Level) -> Vec<Part> {
        let Some(width) = self.place(level.footing()) else {
            return Vec::new();
        };
        let passes = self.widths[width].passes.iter().enumerate().rev();
        let parts = passes.filter_map(|(pass, measured)| {
            if !self.batch.is_multiple_of(measured.items) {
                return None;
            }
            let count = self.batch / measured.items;
            let ranks = (1..=level.ranks)
                .rev()
                .find(|ranks| count.is_multiple_of(*ranks))?;
            let accumulation = count / ranks;
            let part = Part {
                width,
                pass,
                ranks,
                accumulation,
            };
            (level.parts || accumulation == 1).then_some(part)
        });
        parts.collect()
    }
}
