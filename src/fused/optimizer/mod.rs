//! A training on one device.

mod full_precision;
mod parts;
mod step;

use std::fmt::{Display, Formatter};

use backburn_optim::{AccumulateInState, ElementWiseOptimizer};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use super::core::Core;
use super::policies::Policies;
use super::trainer::trainer;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::weights::Role;
#[cfg(feature = "cubecl")]
use backburn_memory as memory;

/// A model and its optimizer for fused training. Each parameter is updated during the backward pass, as
/// soon as its gradient is complete. Then the gradient is released.
///
/// On CPU backends the training result equals that of Burn's [`ModuleOptimizer::step`] after a whole
/// backward pass, bit for bit, except for the cases in `docs/limits.md`.
///
/// ```
/// use backburn::FusedOptimizer;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(8, 1).init(&device);
/// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())?;
///
/// for _ in 0..3 {
///     let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
///     let loss = fused.step(1e-3, |model| model.forward(x).powi_scalar(2).mean())?;
///     println!("{}", loss.into_scalar::<f32>());
/// }
/// let model = fused.model(); // an ordinary Burn model
/// # let _: Linear = model;
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// Inside the closure the model is *attached*: its parameters are read through
/// [`Param::val`](burn::module::Param::val), as every layer of Burn does. There it can be cloned, saved and converted
/// for validation, but not mapped or loaded. A clone can't be read after the step: [`model`](Self::model) returns an
/// ordinary model between steps.
pub struct FusedOptimizer<M: Module> {
    core: Core<M>,
}

trainer!(FusedOptimizer);

impl<M: Module> FusedOptimizer<M> {
    /// Fuses `optimizer` into the backward pass of `model`.
    ///
    /// Lazy parameters are initialized, in module order. The state `optimizer` already holds is
    /// kept.
    ///
    /// # Errors
    ///
    /// Returns an error if the model is not on an autodiff device, or its backend is not in this build; if a trainable
    /// parameter occurs twice, is quantized, is computed from other tracked tensors, or is unsupported by its
    /// optimizer; or if the model was cloned inside of a fused step, or returned by [`valid`](Self::valid) of a training
    /// with offload or a compute type. Also if one of its devices is unavailable, or
    /// computes wrong results in the float type of a parameter ([`check_device`](crate::check_device)).
    pub fn new(model: M, optimizer: ModuleOptimizer) -> Result<Self, FusedError> {
        Self::with_policies(model, optimizer, Policies::default(), None)
    }

    /// Creates a fused optimizer whose [`accumulate`](Self::accumulate) adds the gradients of micro-batches directly
    /// to the state of `optimizer`, and releases them: accumulation without a buffer.
    ///
    /// For [`Sgd`](crate::optim::Sgd) the result is that of a step with the sum of the gradients, except for rounding.
    /// For [`Adam`](crate::optim::Adam) and [`AdamW`](crate::optim::AdamW) it is an approximation of the second moment;
    /// [`AccumulateInState`] has the formula. Without micro-batches the result is that of the optimizer. A record that
    /// is saved between two micro-batches contains their gradients; after loading, a new group starts. If the last gradient of
    /// a parameter is vetoed, its group continues in the next step.
    ///
    /// ```
    /// use backburn::FusedOptimizer;
    /// use backburn::optim::AdamWConfig;
    /// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(2, 1).init(&device);
    /// # let [x, y] = [Tensor::<2>::ones([3, 2], &device), Tensor::<2>::ones([3, 2], &device)];
    ///
    /// let mut fused = FusedOptimizer::accumulating_in_state(model, AdamWConfig::new().build())?;
    /// fused.accumulate(|model| model.forward(x).mean() / 2.0)?;
    /// fused.step(1e-3, |model| model.forward(y).mean() / 2.0)?;
    /// # Ok::<(), backburn::FusedError>(())
    /// ```
    ///
    /// Optimizers without a suitable state don't compile:
    ///
    /// ```compile_fail
    /// # use backburn::FusedOptimizer;
    /// # use burn::{nn::LinearConfig, tensor::Device};
    /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    /// use backburn::optim::LionConfig;
    ///
    /// let fused = FusedOptimizer::accumulating_in_state(model, LionConfig::new().build())?;
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new), and one if the options of the optimizer don't allow it (an L2 penalty in
    /// `Adam`, no momentum in `Sgd`).
    pub fn accumulating_in_state(
        model: M,
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
    ) -> Result<Self, FusedError> {
        let (optimizer, policies) = Policies::in_state_of(optimizer)?;
        Self::with_policies(model, optimizer, policies, None)
    }

    /// Sets the config and the compute device: [`with_config`](Self::with_config) for another device.
    ///
    /// With [offload](FusedConfig::offload) the model stays in host memory. Create and load a model that does not fit
    /// on the device in host memory, on `Device::flex().autodiff()`: at most one parameter at a time is transferred.
    /// `device` has the gradient checkpointing of the model, unless it has autodiff of its own, which must then have the same.
    /// Running statistics, constants and frozen parameters are transferred; with [`Offload::Weights`](crate::Offload::Weights), only
    /// frozen parameters of fewer than [`min_elements`](crate::OffloadConfig::min_elements) elements.
    ///
    /// ```
    /// # #[cfg(feature = "ndarray")] {
    /// use backburn::{FusedConfig, FusedOptimizer, Offload, OffloadConfig};
    /// use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    ///
    /// let device = Device::ndarray(); // in practice a GPU
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

    /// Creates a fused optimizer with these policies, whose extra state is registered in the optimizer.
    pub(crate) fn with_policies(
        model: M,
        optimizer: ModuleOptimizer,
        policies: Policies,
        device: Option<&Device>,
    ) -> Result<Self, FusedError> {
        let core = Core::on_one_device(model, optimizer, policies, device, Some(0))?;
        let fused = Self { core };
        log::info!("{fused}");
        #[cfg(feature = "cubecl")]
        if fused.core.ranks.is_asynchronous {
            memory::recommend_size_match(fused.core.ranks.local_params().bytes());
        }
        Ok(fused)
    }

    /// Returns the number of parameters that are updated during the backward pass.
    pub fn num_released(&self) -> usize {
        self.core.count(Role::Released)
    }

    /// Returns the number of parameters that are updated after the backward pass, from an ordinary gradient: the trainable ones
    /// that carry a reparameterization, such as an unfrozen LoRA base.
    pub fn num_retained(&self) -> usize {
        self.core.count(Role::Retained)
    }

    /// Returns the number of parameters that are not trained: frozen ones and running statistics.
    pub fn num_frozen(&self) -> usize {
        self.core.count(Role::Frozen)
    }
}

/// Displays the number of parameters that are stepped in the backward pass and after it, and the elements of all of them. With
/// `{:#}` one line per parameter: its shape, whether it is trained, and the tensors of its optimizer state.
impl<M: Module> Display for FusedOptimizer<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Display::fmt(&self.core, f)
    }
}
