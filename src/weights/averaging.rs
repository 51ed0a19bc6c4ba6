//! The average of a parameter, beside its value at home.

use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, Tensor};

use crate::device::moved;
use crate::optim::{Averaging, WeightAveragingConfig};
use crate::policy::AverageKeeper;

impl<const D: usize> Averaging<D> {
    /// Goes on with what there was `before`.
    pub(super) fn new(config: Arc<WeightAveragingConfig>, before: Option<Self>) -> Self {
        let average = before.map(|before| before.average).unwrap_or_default();
        Self { config, average }
    }

    /// The average, once there is one.
    pub(super) fn mean(&self, dtype: DType, device: &Device) -> Option<Tensor<D>> {
        let mean = self.average.mean(dtype);
        mean.map(|mean| moved(mean, device))
    }

    /// Lets `optimizer` hold the average of this parameter, and takes over what it has loaded.
    pub(super) fn keep(&self, optimizer: &mut ModuleOptimizer, id: ParamId, device: &Device) {
        AverageKeeper::restore(optimizer, id, &self.average, device);
    }
}
