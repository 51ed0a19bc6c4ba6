use burn::tensor::FloatDType;

use crate::offload::{Offload, OffloadConfig, OffloadedBlocks};

use super::outline::Outline;

/// Minimum bytes of the first pass, for threads of the backend, activations and nodes of the graph.
pub(super) const FIRST_PASS_BYTES: usize = 1 << 19;

/// The type and location of stored weights. Each storage is measured separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightStorage {
    /// `true` for bf16, `false` for the type of the model.
    pub(super) in_bf16: bool,
    /// `true` if the weights of blocks are on the host.
    pub(super) on_host: bool,
}

impl WeightStorage {
    /// Returns the float type of the weights; `None` for that of the model.
    pub(super) fn dtype(self) -> Option<FloatDType> {
        self.in_bf16.then_some(FloatDType::BF16)
    }

    /// Returns the offload during the measurement.
    pub(super) fn offload(self) -> Option<OffloadConfig> {
        let weights = Offload::Weights(OffloadedBlocks::All);
        self.on_host.then(|| OffloadConfig::new(weights))
    }

    /// Returns `true` if the message of a panic is about this storage. Burn's messages name a float type, or call it `dtype`, data
    /// type or element type.
    pub(super) fn is_named_in(self, message: &str) -> bool {
        let lower = message.to_lowercase();
        let names = ["bf16", "dtype", "data type", "element type"];
        self.in_bf16 && names.iter().any(|name| lower.contains(name))
            || self.on_host && message.contains("`OffloadConfig::")
    }

    /// Returns the least bytes to create the model and to run its first pass.
    pub(super) fn least(self, model: &Outline) -> usize {
        let sizes = |exists: bool| {
            let sizes = model.sizes.iter().filter(move |it| it.1 == exists);
            sizes.map(|(elements, _)| *elements)
        };
        let [lazy, existing] = [false, true].map(|exists| sizes(exists).sum::<usize>());
        let [largest, largest_existing] =
            [false, true].map(|exists| sizes(exists).max().unwrap_or(0));
        // In addition to the others, one parameter exists as drawn and as cast.
        let in_pass = |made: usize| made + 8 * largest + FIRST_PASS_BYTES;
        let owned = model.owned_bytes;
        match (self.in_bf16, self.on_host) {
            (false, false) => in_pass(4 * lazy) + owned,
            // All values are there before the first is moved.
            (false, true) => in_pass(4 * lazy).max(4 * lazy + owned),
            (true, _) => {
                let shared = existing.saturating_sub(owned / 4);
                let cast = (8 * largest).max(2 * largest_existing);
                let created = owned + 2 * (lazy + shared) + cast;
                in_pass(2 * (lazy + existing)).max(created)
            }
        }
    }
}
