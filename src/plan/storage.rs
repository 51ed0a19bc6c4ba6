use burn::tensor::FloatDType;

use crate::offload::{Offload, OffloadConfig, OffloadedBlocks};

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

    /// Returns the bytes that creating the model allocates. `sizes` has the elements of each parameter, and `true` if it is initialized.
    pub(super) fn making(self, sizes: &[(usize, bool)]) -> usize {
        let made = sizes.iter().filter(|(_, exists)| !exists || self.in_bf16);
        let made = made.map(|(elements, _)| *elements);
        // In addition to the others, one parameter exists as drawn and as cast.
        let largest = made.clone().max().unwrap_or(0);
        made.sum::<usize>() * if self.in_bf16 { 2 } else { 4 } + 8 * largest
    }
}
