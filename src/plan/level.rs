//! The techniques of a rung, and what they are called.

use crate::config::FusedConfig;
use crate::offload::{Offload, OffloadConfig};
use crate::optim::{StateFormat, WeightFormat};

use super::ladder::Fidelity;
use super::optimizer::PlannedOptimizer;
use super::split::Split;
use super::technique::Technique;
use super::variant::{Footing, Formats};

/// The techniques that are allowed on a rung.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// The one that the rung before does not have.
    pub(super) last: Option<Technique>,
    pub(super) states: Option<StateFormat>,
    pub(super) weights: Option<WeightFormat>,
    pub(super) waits: Option<Offload>,
    /// Whether blocks may run twice.
    pub(super) blocks: bool,
    /// Whether the batch may come in micro-batches.
    pub(super) parts: bool,
    /// Ranks at most.
    pub(super) ranks: usize,
    /// Whether smaller parts of the batch come before blocks that run twice.
    pub(super) parts_first: bool,
    /// Whether the optimizer's state takes the gradients of micro-batches.
    pub(super) in_state: bool,
}

impl Level {
    /// Those from fused training alone on, each with one technique of `order` more, as far as `optimizer` allows them and so many ranks, whose
    /// memory may be `apart`.
    pub(super) fn all<O: PlannedOptimizer>(
        order: &[Technique],
        optimizer: &O,
        apart: bool,
        ranks: usize,
    ) -> Vec<Self> {
        let formats = (Some(StateFormat::Bits8), Some(WeightFormat::Split24));
        let has_formats = optimizer.formatted(formats.0, formats.1).is_some();
        let takes_sums = optimizer.in_state().is_ok();
        let can = |it: &Technique| match it {
            Technique::SumsInState => takes_sums,
            // Those of one memory take as much as one.
            Technique::Ranks => apart && ranks > 1,
            it if it.waits().is_some() => apart,
            it if it.states().is_some() || it.weights().is_some() => has_formats,
            _ => true,
        };
        let order: Vec<_> = order.iter().copied().filter(can).collect();
        let counts = 0..=order.len();
        let levels = counts.map(|count| Self::of(&order[..count], ranks));
        levels.collect()
    }

    fn of(techniques: &[Technique], ranks: usize) -> Self {
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

    /// How a training that is otherwise as in `config` goes on this rung.
    pub(super) fn config(&self, config: &FusedConfig) -> FusedConfig {
        let offload = self.waits.map(OffloadConfig::new);
        config.clone().with_offload(offload)
    }

    /// Whether gradients of this split are added up in the optimizer's state.
    pub(super) fn sums_in_state(&self, split: Split) -> bool {
        self.in_state && split.is_summed()
    }

    /// What comes of the result.
    pub(super) fn fidelity(&self, split: Split) -> Fidelity {
        if self.states.is_some() || self.weights.is_some() {
            Fidelity::Precision
        } else if self.sums_in_state(split) {
            Fidelity::Approximation
        } else if split.ranks > 1 || split.is_summed() {
            Fidelity::Rounding
        } else {
            Fidelity::Exact
        }
    }

    /// What is done, in words.
    pub(super) fn name(&self, split: Split, keep: &[bool]) -> String {
        let weights = self.weights.map(|it| format!("weights in bf16 {it:?}"));
        let states = self.states.map(|it| format!("states in {it:?}"));
        let waits = self.waits.map(|it| match it {
            Offload::States => "states",
            Offload::Updates => "updates",
            Offload::Weights(_) => "weights",
        });
        let waits = waits.map(|it| format!("{it} on the host"));
        let ranks = (split.ranks > 1).then(|| format!("{} ranks", split.ranks));
        let summed = match self.in_state {
            true => " summed in states",
            false => "",
        };
        let parts = format!("{} micro-batches{summed}", split.accumulation);
        let parts = split.is_summed().then_some(parts);
        let twice = keep.iter().filter(|keep| !**keep).count();
        let blocks = format!("{twice} of {} blocks run twice", keep.len());
        let blocks = (twice > 0).then_some(blocks);
        let all = [weights, states, waits, ranks, parts, blocks];
        let all: Vec<_> = all.into_iter().flatten().collect();
        if all.is_empty() {
            "fused".to_string()
        } else {
            all.join(", ")
        }
    }
}
