use std::sync::Arc;

use backburn_base::Parameter;
use burn::module::ParamId;
use burn::tensor::quantization::{quantized_data_len, scale_size};
use burn::tensor::{DType, Device, Shape};

use crate::placement::{PlacementPolicy, StorageTier};
use crate::quantized::{is_expanded, is_shape_stub};
use crate::replica::Size;

/// The role of a float parameter in a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Trainable: the master holds its value, and its gradient is released as soon as it is complete.
    Released,
    /// Trainable, but it already has a reparameterization (an unfrozen LoRA base), and a parameter can have only one.
    /// It is an ordinary leaf and is updated at the end of the pass.
    Retained,
    /// Frozen, or a running statistic: unchanged.
    Frozen,
}

/// Metadata of a float parameter.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    pub(crate) path: Arc<str>,
    /// Earlier paths of a frozen parameter that several layers share.
    pub(crate) earlier_paths: Vec<Arc<str>>,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    /// The device of the value.
    pub(crate) device: Device,
    pub(crate) role: Role,
    /// `true` if autodiff tracks the value and the value is not a leaf.
    pub(crate) is_computed: bool,
}

impl Entry {
    pub(crate) fn of(parameter: Parameter) -> Self {
        let value = parameter.param.value();
        Self {
            id: parameter.param.id(),
            path: parameter.path.into(),
            earlier_paths: Vec::new(),
            shape: value.shape(),
            dtype: value.dtype(),
            device: value.device(),
            role: if !value.is_require_grad() {
                Role::Frozen
            } else if parameter.reparameterization.is_some() {
                Role::Retained
            } else {
                Role::Released
            },
            is_computed: value.is_tracked() && !value.is_require_grad(),
        }
    }

    pub(crate) fn is_trained(&self) -> bool {
        self.role != Role::Frozen
    }

    pub(crate) fn elements(&self) -> usize {
        self.shape.num_elements()
    }

    pub(crate) fn bytes(&self) -> usize {
        match self.dtype {
            dtype if is_shape_stub(dtype) && is_expanded(&self.device) => 0,
            DType::QFloat(scheme) => {
                // A single scale does not count.
                let scale = match scheme.block_scale() {
                    Some(_) => 0,
                    None => scale_size(scheme.scale_dtype()),
                };
                quantized_data_len(&scheme, &self.shape) - scale
            }
            dtype => self.elements() * dtype.size(),
        }
    }

    pub(crate) fn size(&self) -> Size {
        Size {
            id: self.id,
            path: self.path.clone(),
            elements: self.elements(),
            bytes: self.bytes(),
        }
    }

    /// Returns where the parameter is stored between two steps.
    pub(crate) fn tier(&self, policy: &PlacementPolicy) -> StorageTier {
        let tier = policy.tier(self.is_trained(), self.elements(), self.dtype);
        match (self.role, tier) {
            // An ordinary leaf of the module.
            (Role::Retained, StorageTier::Host) => StorageTier::Device,
            _ => tier,
        }
    }
}
