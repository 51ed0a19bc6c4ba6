//! Sets of techniques, and their names.

use backburn_optim::{StateFormat, WeightFormat};

use crate::config::FusedConfig;
use crate::offload::{Offload, OffloadConfig, OffloadHost};

use super::optimizer::{Formats, PlannedOptimizer};
use super::storage::WeightStorage;
use super::technique::Technique;

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
    /// `true` if smaller parts of the batch are preferred to recomputed blocks.
    pub(super) split_first: bool,
}

impl TechniqueSet {
    /// Returns the sets of an order: the empty set first, then each with one more technique. Techniques are skipped if
    /// `optimizer` or a device without its own memory does not support them.
    pub(super) fn all<O: PlannedOptimizer>(
        order: &[Technique],
        optimizer: &O,
        has_own_memory: bool,
    ) -> Vec<Self> {
        let formats = (Some(StateFormat::Bits8), Some(WeightFormat::Split24));
        let has_formats = optimizer.formatted(formats).is_some();
        let can = |it: &Technique| match it {
            it if it.offload().is_some() => has_own_memory && OffloadHost::Flex.device().is_ok(),
            it if it.states().is_some() || it.weights().is_some() => has_formats,
            _ => true,
        };
        let order: Vec<_> = order.iter().copied().filter(can).collect();
        let counts = 0..=order.len();
        counts.map(|count| Self::of(&order[..count])).collect()
    }

    fn of(techniques: &[Technique]) -> Self {
        let place = |technique| techniques.iter().position(|it| *it == technique);
        let (blocks, parts) = (place(Technique::Blocks), place(Technique::MicroBatches));
        Self {
            states: techniques.iter().filter_map(|it| it.states()).next_back(),
            weights: techniques.iter().filter_map(|it| it.weights()).next_back(),
            offload: techniques.iter().filter_map(|it| it.offload()).next_back(),
            blocks: blocks.is_some(),
            micro_batches: parts.is_some(),
            split_first: parts.is_some_and(|split| blocks.is_none_or(|it| split < it)),
        }
    }

    /// Returns `true` if it offloads states, which are in f32.
    pub(super) fn offloads_states(&self) -> bool {
        self.offload == Some(Offload::States)
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

    /// Returns the number of micro-batches of `items` in `batch`; `None` if this set does not allow it.
    pub(super) fn accumulation(&self, batch: usize, items: usize) -> Option<usize> {
        let count = batch.is_multiple_of(items).then(|| batch / items)?;
        (self.micro_batches || count == 1).then_some(count)
    }

    /// Returns a description of the techniques.
    pub(super) fn name(&self, accumulation: usize, keep: &[bool]) -> String {
        let weights = self.weights.map(|it| format!("weights in bf16 {it:?}"));
        let states = self.states.map(|it| format!("states in {it:?}"));
        let offload = self.offload.map(|it| match it {
            Offload::States => "states on the host",
            Offload::Updates => "updates on the host",
            Offload::Weights(_) => "weights on the host",
        });
        let parts = (accumulation > 1).then(|| format!("{accumulation} micro-batches"));
        let recomputed = keep.iter().filter(|keep| !**keep).count();
        let blocks = format!("{recomputed} of {} blocks recomputed", keep.len());
        let blocks = (recomputed > 0).then_some(blocks);
        let all = [weights, states, offload.map(String::from), parts, blocks];
        let all: Vec<_> = all.into_iter().flatten().collect();
        match all.is_empty() {
            true => "fused".to_string(),
            false => all.join(", "),
        }
    }
}
