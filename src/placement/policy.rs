use burn::tensor::{DType, FloatDType};

use crate::offload::{Offload, OffloadConfig};

/// The placement policy of a config: compute type and offload.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacementPolicy {
    /// The compute type, if it is not the type of the parameters.
    pub(crate) compute_dtype: Option<FloatDType>,
    /// The offload config, if anything is offloaded.
    pub(crate) offload: Option<OffloadConfig>,
    pub(crate) max_bytes_in_flight: Option<usize>,
    /// Offloads the inputs of checkpointed blocks, too.
    pub(crate) offload_inputs: bool,
}

/// The storage of a parameter and its optimizer state between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorageTier {
    Device,
    /// The parameter on the device, its state on the host.
    StateOnHost,
    /// Both on the host, where a trained parameter is stepped.
    Host,
}

impl PlacementPolicy {
    /// Returns where a parameter, trained or frozen, is stored.
    pub(crate) fn tier(&self, is_trained: bool, elements: usize, dtype: DType) -> StorageTier {
        let Some(offload) = &self.offload else {
            return StorageTier::Device;
        };
        let is_large = elements >= offload.min_elements;
        let is_cast = self.compute_dtype(dtype) != dtype;
        match offload.offload {
            Offload::Weights(_) if is_large => StorageTier::Host,
            _ if !is_trained => StorageTier::Device,
            Offload::States if is_large => StorageTier::StateOnHost,
            Offload::Updates | Offload::Weights(_) if is_large || is_cast => StorageTier::Host,
            _ => StorageTier::Device,
        }
    }

    /// Returns the float type in which the model computes with a parameter of type `dtype`.
    pub(crate) fn compute_dtype(&self, dtype: DType) -> DType {
        match dtype {
            // The scheme of a quantized parameter determines its compute type.
            DType::QFloat(_) => dtype,
            _ => self.compute_dtype.map_or(dtype, FloatDType::into),
        }
    }
}
