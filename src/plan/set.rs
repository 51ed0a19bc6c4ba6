//! Sets of techniques, and their names.

use crate::config::FusedConfig;
use crate::offload::{Offload, OffloadConfig};
use crate::optim::{StateFormat, WeightFormat};

use super::optimizer::PlannedOptimizer;
use super::storage::WeightStorage;
use super::technique::Technique;

/// Formats of states and weights; `None` for those of the optimizer.
pub(super) type Formats = (Option<StateFormat>, Option<WeightFormat>);

/// A division of a batch into ranks and micro-batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) ranks: usize,
    /// Micro-batches on each rank.
    pub(super) accumulation: usize,
}

impl Split {
    /// The undivided batch.
    pub(super) const WHOLE: Self = Self {
        ranks: 1,
        accumulation: 1,
    };
}

/// Techniques that may be used together.
#[derive(Clone, Copy, Debug)]
pub(super) struct TechniqueSet {
    states: Option<StateFormat>,
    pub(super) weights: Option<WeightFormat>,
    offload: Option<Offload>,
    /// `true` if blocks may be recomputed.
    pub(super) blocks: bool,
    /// `true` if the batch may be split into micro-batches.
    pub(super) micro_batches: bool,
    /// Maximum number of ranks.
    pub(super) ranks: usize,
    /// `true` if smaller parts of the batch are preferred to recomputed blocks.
    pub(super) split_first: bool,
    /// `true` if the optimizer's state accumulates the gradients of micro-batches.
    in_state: bool,
}

impl TechniqueSet {
    /// Returns the sets of an order: the empty set, then one more technique each. Techniques are skipped if `optimizer`, the number of
    /// `ranks`, or a device without its own memory does not support them.
    pub(super) fn all<O: PlannedOptimizer>(
        order: &[Technique],
        optimizer: &O,
        has_own_memory: bool,
        ranks: usize,
    ) -> Vec<Self> {
        let formats = (Some(StateFormat::Bits8), Some(WeightFormat::Split24));
        let has_formats = optimizer.formatted(formats.0, formats.1).is_some();
        let takes_sums = optimizer.in_state().is_ok();
        let can = |it: &Technique| match it {
            Technique::SumsInState => takes_sums,
            // Ranks that share one memory save nothing.
            Technique::Ranks => has_own_memory && ranks > 1,
            it if it.offload().is_some() => has_own_memory,
            it if it.states().is_some() || it.weights().is_some() => has_formats,
            _ => true,
        };
        let order: Vec<_> = order.iter().copied().filter(can).collect();
        let counts = 0..=order.len();
        counts
            .map(|count| Self::of(&order[..count], ranks))
            .collect()
    }

    fn of(techniques: &[Technique], ranks: usize) -> Self {
        let place = |technique| techniques.iter().position(|it| *it == technique);
        let (blocks, parts) = (place(Technique::Blocks), place(Technique::MicroBatches));
        let on_ranks = place(Technique::Ranks);
        let first_split = [parts, on_ranks].into_iter().flatten().min();
        let offload = techniques.iter().filter_map(|it| it.offload()).next_back();
        let states = techniques.iter().filter_map(|it| it.states()).next_back();
        let takes_sums = place(Technique::SumsInState).is_some();
        Self {
            states,
            weights: techniques.iter().filter_map(|it| it.weights()).next_back(),
            offload,
            blocks: blocks.is_some(),
            micro_batches: parts.is_some(),
            ranks: on_ranks.map_or(1, |_| ranks),
            split_first: first_split.is_some_and(|split| blocks.is_none_or(|it| split < it)),
            // Quantized and offloaded states can't accumulate.
            in_state: takes_sums && states.is_none() && offload.is_none(),
        }
    }

    pub(super) fn formats(&self) -> Formats {
        (self.states, self.weights)
    }

    pub(super) fn storage(&self) -> WeightStorage {
        WeightStorage {
            in_bf16: self.weights.is_some(),
            on_host: matches!(self.offload, Some(Offload::Weights(_))),
        }
    }

    /// Returns `config` with the offload of this set.
    pub(super) fn config(&self, config: &FusedConfig) -> FusedConfig {
        let offload = self.offload.map(OffloadConfig::new);
        config.clone().with_offload(offload)
    }

    /// Returns `true` if the gradients of this split are accumulated in the optimizer's state.
    pub(super) fn sums_in_state(&self, split: Split) -> bool {
        self.in_state && split.accumulation > 1
    }

    /// Returns the split of `batch` into parts of `items`, on as many ranks as divide it; `None` if this set does not allow it.
    pub(super) fn split(&self, batch: usize, items: usize) -> Option<Split> {
        let count = batch.is_multiple_of(items).then(|| batch / items)?;
        let mut ranks = (1..=self.ranks).rev();
        let ranks = ranks.find(|ranks| count.is_multiple_of(*ranks))?;
        let accumulation = count / ranks;
        (self.micro_batches || accumulation == 1).then_some(Split {
            ranks,
            accumulation,
        })
    }

    /// Returns a description of the techniques.
    pub(super) fn name(&self, split: Split, keep: &[bool]) -> String {
        let weights = self.weights.map(|it| format!("weights in bf16 {it:?}"));
        let states = self.states.map(|it| format!("states in {it:?}"));
        let offload = self.offload.map(|it| match it {
            Offload::States => "states on the host",
            Offload::Updates => "updates on the host",
            Offload::Weights(_) => "weights on the host",
        });
        let ranks = (split.ranks > 1).then(|| format!("{} ranks", split.ranks));
        let summed = if self.in_state {
            " summed in states"
        } else {
            ""
        };
        let parts = format!("{} micro-batches{summed}", split.accumulation);
        let parts = (split.accumulation > 1).then_some(parts);
        let recomputed = keep.iter().filter(|keep| !**keep).count();
        let blocks = format!("{recomputed} of {} blocks recomputed", keep.len());
        let blocks = (recomputed > 0).then_some(blocks);
        let all = [
            weights,
            states,
            offload.map(String::from),
            ranks,
            parts,
            blocks,
        ];
        let all: Vec<_> = all.into_iter().flatten().collect();
        match all.is_empty() {
            true => "fused".to_string(),
            false => all.join(", "),
        }
    }
}
