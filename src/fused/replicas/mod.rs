//! A model trained on several devices, each with its own batch.

mod bytes;
#[cfg(all(test, feature = "flex", feature = "ndarray"))]
mod shuffled;
mod step;
mod threads;

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
pub use bytes::RankBytes;
use threads::RankThreads;

/// A [`FusedOptimizer`](crate::FusedOptimizer) on several devices: data parallel training with gradient release.
///
/// Every device, or *rank*, has a replica of the model and computes with its own batch. The [owner](crate::Ownership)
/// of a parameter sums its gradients and steps it during the backward pass. The other ranks receive the new value at the
/// end of the step, or when they read it ([`Sharding::Full`](crate::Sharding::Full)). The result is that of Burn's `ExecutionStrategy::MultiDevice`: gradients are summed, not
/// averaged. To get the result of one device, divide a mean loss by the number of ranks.
///
/// ```
/// use backburn::{FusedConfig, FusedReplicas, Sharding};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let devices = [Device::flex(), Device::flex()]; // `Device::cuda(0)` and `Device::cuda(1)`, say
/// let model: Linear = LinearConfig::new(8, 1).init(&devices[0].clone().autodiff());
/// let mut fused = FusedReplicas::new(model, AdamWConfig::new().init(), devices.clone())?
///     .with_config(FusedConfig::new().with_sharding(Sharding::Full))?;
///
/// let batches = devices.map(|device| {
///     Tensor::<2>::random([16, 8], Distribution::Default, &device.autodiff())
/// });
/// let losses = fused.step(1e-3, batches, |model, x| model.forward(x).powi_scalar(2).mean() / 2.0)?;
/// assert_eq!(losses.len(), 2);
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// Every rank runs on its own thread, so captured values are moved into the closure. A batch is on the
/// [device](Self::devices) of its rank.
///
/// # What is shared, and what is not
///
/// - Policies and hooks see a gradient once, as the sum over all ranks.
/// - Every rank draws its own random numbers in its forward pass and in blocks. They come from one seed per step and do
///   not depend on the numbers of other ranks. Burn's random generator is one per process. Unless earlier steps have
///   drawn nothing, ranks run their forward passes and the second runs of their blocks in turn. So a closure must not wait
///   for another rank, or for a step of another training on another thread, or compute for ten seconds without reading a trained
///   parameter: a step then fails with [`RandomNumbersLocked`](crate::FusedError::RandomNumbersLocked). Numbers that are drawn later
///   (in hooks, or after the first gradient of a closure that runs the backward pass itself) are not repeatable.
/// - After every step, running statistics are the mean over the ranks that have updated them, as in Burn's
///   multi-device training on one device.
/// - Trained parameters with a reparameterization (a LoRA base) are on all ranks, and their owner updates them at the
///   end of the pass.
/// - The [memory recorder](crate::memory) counts the whole process, not ranks.
///
/// # Faults
///
/// If a rank fails, the step fails on all ranks with an error that names it. Parameters whose gradients had already
/// arrived from all ranks are updated, the others are unchanged. Weights and optimizer states stay readable, unless
/// their device is lost. A lost device loses the states that it owns. It also loses its weights with
/// [`Sharding::Full`](crate::Sharding::Full), with `compute_dtype`, in the first step, or if it is the first device. Offloaded
/// values are not lost.
pub struct FusedReplicas<M: Module> {
    core: Core<M>,
    threads: RankThreads,
}

trainer!(FusedReplicas);

impl<M: Module + 'static> FusedReplicas<M> {
    /// Creates one replica of `model` on each of `devices`, and fuses `optimizer` into their backward passes. `devices`
    /// may contain a device several times.
    ///
    /// The model may be on any device: every parameter is moved to its owner, and transferred to the other ranks when
    /// they compute with it.
    ///
    /// # Errors
    ///
    /// If `devices` is empty, or a thread can't be started ([`FusedError::Replicas`]). Also returns the errors of
    /// [`FusedOptimizer::new`](crate::FusedOptimizer::new) for each device.
    pub fn new(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
    ) -> Result<Self, FusedError> {
        Self::new_with_config(model, optimizer, devices, FusedConfig::default())
    }

    /// Creates replicas with this `config`. Offloaded values are moved to the host immediately: a model that does not
    /// fit on the devices is created on the host, and one parameter at a time is transferred.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new) and [`with_config`](Self::with_config).
    pub fn new_with_config(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
        config: FusedConfig,
    ) -> Result<Self, FusedError> {
        let (policies, optimizer) = Policies::default().with_config(config, optimizer)?;
        Self::with_policies(model, optimizer, policies, devices.into_iter().collect())
    }

    /// Creates replicas for which [`accumulate`](Self::accumulate) adds the gradients of a micro-batch directly to the
    /// state of `optimizer`, as
    /// [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state) does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new) and [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state).
    pub fn accumulating_in_state(
        model: M,
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
        devices: impl IntoIterator<Item = Device>,
    ) -> Result<Self, FusedError> {
        let (optimizer, policies) = Policies::in_state_of(optimizer)?;
        Self::with_policies(model, optimizer, policies, devices.into_iter().collect())
    }

    /// Creates replicas with these policies, whose extra state is registered in the optimizer.
    pub(crate) fn with_policies(
        model: M,
        optimizer: ModuleOptimizer,
        policies: Policies,
        devices: Vec<Device>,
    ) -> Result<Self, FusedError> {
        if devices.is_empty() {
            let reason = "the list of devices is empty: pass one device for each rank".to_string();
            return Err(FusedError::Replicas { reason });
        }
        let core = Core::on_devices(model, optimizer, policies, &devices, Some(0))?;
        let threads = RankThreads::new(devices.len())?;
        let fused = Self { core, threads };
        log::info!("{fused}");
        Ok(fused)
    }

    /// Returns the bytes of weights and gradients on each rank.
    pub fn bytes(&self) -> Vec<RankBytes> {
        self.core
            .ranks
            .attached_modules
            .iter()
            .map(RankBytes::of)
            .collect()
    }

    /// Returns the devices of the ranks, to create batches on. They have autodiff and the gradient checkpointing strategy
    /// of the model, even if the devices given to `new` had not.
    pub fn devices(&self) -> &[Device] {
        self.core.ranks.given_devices.as_deref().unwrap_or_default()
    }

    /// Returns the rank that owns the parameter at `path`; `None` if no such parameter is trained.
    pub fn owner(&self, path: &str) -> Option<usize> {
        let attached = self.core.ranks.attached();
        let trained = [Role::Released, Role::Retained];
        let mut parameters = trained
            .into_iter()
            .flat_map(|role| attached.inventory.sizes(role));
        let found = parameters.find(|size| *size.path == *path)?;
        Some(attached.context.owner(found.id))
    }
}

/// Prints the same as [`FusedOptimizer`](crate::FusedOptimizer), and the number of ranks.
impl<M: Module> Display for FusedReplicas<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (ranks, sharding) = (
            self.core.ranks.attached_modules.len(),
            self.core.policies.config.sharding,
        );
        write!(f, "{ranks} ranks (sharding: {sharding:?}), ")?;
        Display::fmt(&self.core, f)
    }
}
