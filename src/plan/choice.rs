//! What a training takes with some techniques, and which of these ways costs least.

use crate::config::FusedConfig;
use crate::offload::{Offload, OffloadConfig};
use crate::optim::{StateFormat, WeightFormat};

use super::ladder::{Fidelity, Rung, in_millionths};
use super::pass::{Kept, Pass, Run};
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
    /// Ranks at most.
    pub(super) ranks: usize,
    /// Whether smaller parts of the batch come before blocks that run twice.
    parts_first: bool,
    /// Whether the optimizer's state takes the gradients of micro-batches.
    in_state: bool,
}

/// Which pass a rank goes through, again and again.
#[derive(Clone, Copy, Debug)]
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
    pub(super) widths: Vec<Width>,
}

impl Level {
    /// The level with these techniques, where there are so many ranks.
    pub(super) fn of(techniques: &[Technique], ranks: usize) -> Self {
        let place = |technique| techniques.iter().position(|it| *it == technique);
        let (blocks, parts) = (place(Technique::Blocks), place(Technique::MicroBatches));
        let on_ranks = place(Technique::Ranks);
        let first = [parts, on_ranks].into_iter().flatten().min();
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
            ranks: on_ranks.map_or(1, |_| ranks),
            parts_first: first.is_some_and(|first| blocks.is_none_or(|blocks| first < blocks)),
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

    /// Whether this part adds gradients up in the optimizer's state.
    pub(super) fn sums_in_state(&self, part: Part) -> bool {
        self.in_state && part.accumulation > 1
    }

    /// What comes of the result.
    fn fidelity(&self, part: Part) -> Fidelity {
        if self.states.is_some() || self.weights.is_some() {
            Fidelity::Precision
        } else if self.sums_in_state(part) {
            Fidelity::Approximation
        } else if part.accumulation * part.ranks > 1 {
            Fidelity::Rounding
        } else {
            Fidelity::Exact
        }
    }

    pub(super) fn rung(&self, choice: &Choice) -> Rung {
        Rung {
            name: self.name(choice.part, &choice.kept.keep),
            device_bytes: choice.device,
            host_bytes: choice.host,
            seconds: Some(choice.seconds),
            fidelity: self.fidelity(choice.part),
        }
    }

    /// One of which no pass was run, since so many bytes are needed before.
    pub(super) fn unmeasured(&self, bytes: usize) -> Rung {
        Rung {
            name: self.name(Part::WHOLE, &[]),
            device_bytes: bytes,
            host_bytes: 0,
            seconds: None,
            fidelity: self.fidelity(Part::WHOLE),
        }
    }

    /// What is done, in words.
    fn name(&self, part: Part, keep: &[bool]) -> String {
        let mut parts = Vec::new();
        if let Some(weights) = self.weights {
            parts.push(format!("weights in bf16 {weights:?}"));
        }
        if let Some(states) = self.states {
            parts.push(format!("states in {states:?}"));
        }
        match self.waits {
            Some(Offload::States) => parts.push("states on the host".into()),
            Some(Offload::Updates) => parts.push("updates on the host".into()),
            Some(Offload::Weights(_)) => parts.push("weights on the host".into()),
            None => {}
        }
        if part.ranks > 1 {
            parts.push(format!("{} ranks", part.ranks));
        }
        if part.accumulation > 1 {
            let sums = if self.in_state {
                " summed in states"
            } else {
                ""
            };
            parts.push(format!("{} micro-batches{sums}", part.accumulation));
        }
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

impl Part {
    /// The batch as it is.
    const WHOLE: Self = Self {
        width: 0,
        pass: 0,
        ranks: 1,
        accumulation: 1,
    };
}

impl Facts {
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
            let known = self.beside(level, part)?.device + self.widths[part.width].floor();
            let room = budget.checked_sub(known)? as f64 / self.margin;
            pass.fewest_twice(twice.run.start.saturating_add(room as usize))
        } else {
            pass.none_twice()
        };
        let choice = self.of(level, part, kept?)?;
        (choice.device <= budget).then_some(choice)
    }

    fn of(&self, level: &Level, part: Part, kept: Kept) -> Option<Choice> {
        let beside = self.beside(level, part)?;
        let Run { seconds, .. } = kept.run;
        let in_a_pass = (kept.run.in_pass() as f64 * self.margin).ceil() as usize;
        let known = self.widths[part.width].floor() + beside.device;
        Some(Choice {
            part,
            device: known.saturating_add(in_a_pass),
            host: beside.host,
            seconds: in_millionths(part.accumulation as f64 * seconds + beside.seconds),
            kept,
        })
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
