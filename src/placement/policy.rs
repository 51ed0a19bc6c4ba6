use burn::tensor::{DType, FloatDType};

use crate::offload::{Offload, OffloadConfig};

/// What a config asks of a layout.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacementPolicy {
    /// What the model computes in, if that is not the type of its parameters.
    pub(crate) compute_dtype: Option<FloatDType>,
    /// What waits on the host, if anything does.
    pub(crate) offload: Option<OffloadConfig>,
    pub(crate) max_bytes_in_flight: Option<usize>,
    /// Offloads the inputs of checkpointed blocks, too.
    pub(crate) offload_inputs: bool,
}

/// Where a parameter is between two steps, and its optimizer state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorageTier {
    Device,
    /// The parameter on the device, its state on the host.
    StateOnHost,
    /// On the host, where it is stepped if it is in training.
    Host,
}

impl PlacementPolicy {
    /// Where a parameter of so many elements in `dtype` rests, in training or frozen.
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

    /// The float type in which the model computes with a parameter of type `dtype`.
    pub(crate) fn compute_dtype(&self, dtype: DType) -> DType {
        match dtype {
            // What is quantized is computed with as its scheme says.
            DType::QFloat(_) => dtype,
            _ => self.compute_dtype.map_or(dtype, FloatDType::into),
        }
    }
}
