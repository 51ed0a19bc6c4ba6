//! Training on another device than the model's.

use burn::module::Module;
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::config::FusedConfig;
use crate::error::FusedError;

impl<M: Module> FusedOptimizer<M> {
    /// Sets the config and the compute device: [`with_config`](Self::with_config) for another device.
    ///
    /// With [offload](FusedConfig::offload) the model stays in host memory. A model that does not fit on the device is
    /// created and loaded there, on `Device::flex().autodiff()`: one parameter at a time is transferred, if at all.
    /// All of its frozen parameters, running statistics and constants are transferred.
    ///
    /// ```
    /// # #[cfg(feature = "ndarray")] {
    /// use backburn::{FusedConfig, FusedOptimizer, Offload, OffloadConfig};
    /// use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    ///
    /// let device = Device::ndarray(); // a GPU, in earnest
    /// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let config = FusedConfig::new().with_offload(Some(OffloadConfig::new(Offload::Updates)));
    /// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())?
    ///     .with_config_on(config, &device)?;
    ///
    /// let x = Tensor::<2>::ones([8, 64], &device.autodiff());
    /// fused.step(1e-3, |model| model.forward(x).mean())?;
    /// # }
    /// # Ok::<(), backburn::FusedError>(())
    /// ```
    ///
    /// The result is that of the same optimizer without offload, bit for bit if the device computes the update as the
    /// host does. [Accumulated](Self::accumulate) gradients are offloaded, too. [`model`](Self::model) then returns a
    /// model in host memory, and [`valid`](Self::valid) one on the device.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`with_config`](Self::with_config) and, if the model moves, of [`new`](Self::new).
    pub fn with_config_on(
        mut self,
        config: FusedConfig,
        device: &Device,
    ) -> Result<Self, FusedError> {
        self.core = self.core.with_config(config, Some(device))?;
        Ok(self)
    }
}
