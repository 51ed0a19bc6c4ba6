//! The techniques of a rung, and what they are called.

use crate::offload::{Offload, OffloadConfig};
use crate::optim::{StateFormat, WeightFormat};

use super::choice::{Choice, Part};
use super::ladder::{Fidelity, Rung};
use super::technique::Technique;
use super::width::{Footing, Formats};

/// The techniques that are allowed on a rung.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// The one that the rung before does not have.
    pub(super) last: Option<Technique>,
    pub(super) states: Option<StateFormat>,
    pub(super) weights: Option<WeightFormat>,
    pub(super) waits: Option<Offload>,
    pub(super) blocks: bool,
    pub(super) parts: bool,
    /// Ranks at most.
    pub(super) ranks: usize,
    /// Whether smaller parts of the batch come before blocks that run twice.
    pub(super) parts_first: bool,
    /// Whether the optimizer's state takes the gradients of micro-batches.
    pub(super) in_state: bool,
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
