use backburn_base::{ModelKey, list};
use backburn_memory::MemoryError;
use burn::module::Module;
use burn::tensor::{DType, Device};

use crate::parameters::running_statistics;

use super::probe::held;

/// The properties of a model that the planner needs while the model itself does not exist.
pub(super) struct Outline {
    pub(super) key: ModelKey,
    pub(super) has_statistics: bool,
    /// The number of elements of each parameter; `true` if it has a value.
    pub(super) sizes: Vec<(usize, bool)>,
    /// Bytes of the initial values that no other handle shares.
    pub(super) owned_bytes: usize,
}

impl Outline {
    /// Returns the properties of `model`. Drops it, and counts the bytes freed on `device`. Values on
    /// another device will be copied to `device`, so they count, too.
    pub(super) fn of<M: Module>(model: M, device: &Device) -> Result<Self, MemoryError> {
        let parameters = list(&model).into_iter().map(|it| it.param);
        let mut outline = Self {
            key: ModelKey::of(&model),
            has_statistics: !running_statistics(&model).is_empty(),
            sizes: parameters
                .map(|param| (param.shape().num_elements(), param.is_initialized()))
                .collect(),
            owned_bytes: 0,
        };
        let is_there = |it: Device| it.inner() == *device;
        if model.devices().into_iter().all(is_there) {
            let before = held(device)?;
            drop(model);
            outline.owned_bytes = before.saturating_sub(held(device)?);
        } else {
            let existing = list(&model).into_iter().map(|it| it.param);
            let existing = existing.filter(|param| param.is_initialized());
            let bytes = existing.map(|param| match param.value().dtype() {
                // The bytes of codes are not known here.
                DType::QFloat(_) => 0,
                dtype => dtype.size() * param.shape().num_elements(),
            });
            outline.owned_bytes = bytes.sum();
        }
        Ok(outline)
    }
}
