use burn::tensor::FloatDType;

use crate::offload::{Offload, OffloadConfig, OffloadedBlocks};

/// In which type the weights are stored, and where. Each storage is measured on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightStorage {
    /// In bf16; else in the type of the model.
    pub(super) in_bf16: bool,
    /// The weights of blocks are on the host.
    pub(super) on_host: bool,
}

impl WeightStorage {
    /// Returns the type of the weights; `None` for that of the model.
    pub(super) fn dtype(self) -> Option<FloatDType> {
        self.in_bf16.then_some(FloatDType::BF16)
    }

    /// Returns what is offloaded while the model is measured.
    pub(super) fn offload(self) -> Option<OffloadConfig> {
        let weights = Offload::Weights(OffloadedBlocks::All);
        self.on_host.then(|| OffloadConfig::new(weights))
    }

    /// Returns the bytes that making the model allocates. `sizes` has the elements of each parameter, and `true` for one that exists already.
    pub(super) fn making(self, sizes: &[(usize, bool)]) -> usize {
        let made = sizes.iter().filter(|(_, exists)| !exists || self.in_bf16);
        let made = made.map(|(elements, _)| *elements);
        // One parameter is drawn, and cast, while the others exist.
        let largest = made.clone().max().unwrap_or(0);
        made.sum::<usize>() * if self.in_bf16 { 2 } else { 4 } + 8 * largest
    }
}
