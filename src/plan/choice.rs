//! What a training takes with some techniques, and which of these ways costs least.

use crate::config::FusedConfig;
use crate::offload::{Offload, OffloadConfig};
use crate::optim::{StateFormat, WeightFormat};

use super::ladder::Fidelity;
use super::pass::{Kept, Run};
use super::technique::Technique;
use super::width::{Beside, Footing, Formats, Sums, Width};

/// The techniques that are allowed on a rung.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// The one that the rung before does not have.
    pub(super) last: Option<Technique>,
    pub(super) states: Option<StateFormat>,
    pub(super) weights: Option<WeightFormat>,
    pub(super) waits: Option<Offload>,
    blocks: bool,
    parts: bool,
    /// Whether more micro-batches come before blocks that run twice.
    parts_first: bool,
    /// Whether the optimizer's state takes the gradients of micro-batches.
    in_state: bool,
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

/// What was measured of a training, and what it is reckoned with.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Items in a step.
    pub(super) batch: usize,
    /// How it is trained beside.
    pub(super) config: FusedConfig,
    /// What a pass is taken to hold, in parts of what was measured.
    pub(super) margin: f64,
    pub(super) widths: Vec<Width>,
}

impl Level {
    pub(super) fn of(techniques: &[Technique]) -> Self {
        let place = |technique| techniques.iter().position(|it| *it == technique);
        let (blocks, parts) = (place(Technique::Blocks), place(Technique::MicroBatches));
        let waits = techniques.iter().filter_map(|it| it.waits()).next_back();
        let states = techniques.iter().filter_map(|it| it.states()).next_back();
        let takes_sums = place(Technique::SumsInState).is_some();
        Self {
            last: techniques.last().copied(),
            states,
            weights: techniques.iter().filter_map(|it| it.weights()).next_back(),
            waits,
            blocks: blocks.is_some(),
            parts: parts.is_some(),
            parts_first: parts.is_some_and(|parts| blocks.is_none_or(|blocks| parts < blocks)),
            // States in few bits can't take them, and those that wait are records.
            in_state: takes_sums && states.is_none() && waits.is_none(),
        }
    }

    pub(super) fn formats(&self) -> Formats {
        (self.states, self.weights)
    }

    pub(super) fn footing(&self) -> Footing {
        Footing {
            in_bf16: self.weights.is_some(),
            on_host: matches!(self.waits, Some(Offload::Weights(_))),
        }
    }

    pub(super) fn offload(&self) -> Option<OffloadConfig> {
        self.waits.map(OffloadConfig::new)
    }

    /// Whether `choice` adds gradients up in the optimizer's state.
    pub(super) fn sums_in_state(&self, choice: &Choice) -> bool {
        self.in_state && choice.accumulation > 1
    }

    /// What comes of the result.
    pub(super) fn fidelity(&self, choice: &Choice) -> Fidelity {
        if self.states.is_some() || self.weights.is_some() {
            Fidelity::Precision
        } else if self.sums_in_state(choice) {
            Fidelity::Approximation
        } else if choice.accumulation > 1 {
            Fidelity::Rounding
        } else {
            Fidelity::Exact
        }
    }

    /// What `choice` does, in words.
    pub(super) fn name(&self, choice: &Choice) -> String {
        let mut parts = Vec::new();
        if let Some(weights) = self.weights {
            parts.push(format!("weights in bf16 {weights:?}"));
        }
        if let Some(states) = self.states {
            parts.push(format!("states in {states:?}"));
        }
        parts.extend(self.waits.map(|waits| {
            let what = match waits {
                Offload::States => "states",
                Offload::Updates => "updates",
                Offload::Weights(_) => "weights",
            };
            format!("{what} on the host")
        }));
        if choice.accumulation > 1 {
            let sums = if self.in_state {
                " summed in states"
            } else {
                ""
            };
            parts.push(format!("{} micro-batches{sums}", choice.accumulation));
        }
        let keep = &choice.kept.keep;
        let twice = keep.iter().filter(|keep| !**keep).count();
        if twice > 0 {
            parts.push(format!("{twice} of {} blocks run twice", keep.len()));
        }
        if parts.is_empty() {
            "fused".to_string()
        } else {
            parts.join(", ")
        }
    }
}

impl Facts {
    /// The way on this rung that costs least and fits.
    pub(super) fn choice(&self, level: &Level, budget: usize) -> Option<Choice> {
        let place = self.place(level.footing())?;
        let passes = self.passes(level, place);
        let first = |blocks| {
            let mut passes = passes.iter();
            passes.find_map(|pass| self.way(level, place, *pass, blocks, budget))
        };
        let without = level.parts_first.then(|| first(false)).flatten();
        without.or_else(|| first(level.blocks))
    }

    /// The way on this rung that takes least.
    pub(super) fn least(&self, level: &Level) -> Option<Choice> {
        let place = self.place(level.footing())?;
        let all = self.passes(level, place).into_iter().flat_map(|pass| {
            let none = self.widths[place].passes[pass].none_twice();
            let none = none.and_then(|kept| self.of(level, place, pass, kept));
            [none, self.all_twice(level, place, pass)]
        });
        all.flatten().min_by_key(|choice| choice.device)
    }

    /// What the technique that `level` adds would bring at most.
    pub(super) fn at_most(&self, level: &Level) -> Option<Choice> {
        match level.last? {
            Technique::Blocks => {
                let place = self.place(level.footing())?;
                let pass = self.passes(level, place).into_iter().next()?;
                self.all_twice(level, place, pass)
            }
            Technique::MicroBatches => self.least(level),
            _ => None,
        }
    }

    /// All blocks of this pass run twice.
    fn all_twice(&self, level: &Level, width: usize, pass: usize) -> Option<Choice> {
        let kept = self.widths[width].passes[pass].all_twice();
        self.of(level, width, pass, kept.filter(|_| level.blocks)?)
    }

    /// No block of this pass runs twice, or as few as fits.
    fn way(
        &self,
        level: &Level,
        width: usize,
        pass: usize,
        blocks: bool,
        budget: usize,
    ) -> Option<Choice> {
        let measured = &self.widths[width].passes[pass];
        let kept = if blocks && let Some(twice) = &measured.twice {
            let (beside, _) = self.beside(level, width, pass)?;
            // What is there when the pass begins is known.
            let known = beside.device + self.widths[width].floor();
            let room = budget.checked_sub(known)? as f64 / self.margin;
            measured.fewest_twice(twice.run.start + room as usize)
        } else {
            measured.none_twice()
        };
        let choice = self.of(level, width, pass, kept?)?;
        (choice.device <= budget).then_some(choice)
    }

    fn of(&self, level: &Level, width: usize, pass: usize, kept: Kept) -> Option<Choice> {
        let (beside, accumulation) = self.beside(level, width, pass)?;
        let Run { seconds, .. } = kept.run;
        let in_a_pass = kept.run.in_pass() as f64 * self.margin;
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
        let sums = if accumulation == 1 || level.in_state {
            Sums::None
        } else if self.config.full_precision_accumulation {
            Sums::InFull
        } else {
            Sums::AsParameter
        };
        let offload = level.offload();
        let beside = width.beside(level.formats(), sums, &self.config, offload.as_ref())?;
        Some((beside, accumulation))
    }

    /// What was measured so.
    pub(super) fn place(&self, footing: Footing) -> Option<usize> {
        self.widths.iter().position(|it| it.footing == footing)
    }

    /// The passes that a rung may use, the largest first.
    fn passes(&self, level: &Level, width: usize) -> Vec<usize> {
        let passes = self.widths[width].passes.iter().enumerate().rev();
        let allowed = passes.filter(|(_, pass)| level.parts || pass.items == self.batch);
        allowed.map(|(place, _)| place).collect()
    }
}

/// Whole microseconds, so that JSON reads back what was written.
pub(super) fn in_micros(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}
