//! A model trained on several devices, each with a batch of its own.

mod bytes;
mod change;
mod configure;
mod constructors;
mod crew;
mod dispatch;
mod rank;
mod resume;
mod setup;
mod step;
mod task;

use std::fmt::{Display, Formatter};

use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::record;
use crate::report::StepReport;
use crate::weights::Role;
pub use bytes::RankBytes;
use crew::Crew;
use setup::Setup;

/// A [`FusedOptimizer`] on several devices: data parallel training with gradient release.
///
/// Every device, or *rank*, has a replica of the model and computes with a batch of its own. The gradients of a
/// parameter are added up by its [owner](crate::Ownership), which steps it and gives the others the new value; none waits
/// for the end of the backward pass. The result is that of Burn's `ExecutionStrategy::MultiDevice`: gradients are
/// summed, not averaged, so a loss that is a mean is to be divided by the number of ranks where the result of one
/// device is wanted.
///
/// ```
/// use backburn::{FusedConfig, FusedReplicas, Sharding};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let devices = [Device::flex(), Device::flex()]; // `Device::cuda(0)` and `Device::cuda(1)`, say
/// let model: Linear = LinearConfig::new(8, 1).init(&devices[0].clone().autodiff());
/// let mut fused = FusedReplicas::new(model, AdamWConfig::new().init(), devices.clone())
///     .with_config(FusedConfig::new().with_sharding(Sharding::Full));
///
/// let batches = devices.map(|device| {
///     Tensor::<2>::random([16, 8], Distribution::Default, &device.autodiff())
/// });
/// let losses = fused.step(1e-3, batches, |model, x| model.forward(x).powi_scalar(2).mean() / 2.0);
/// assert_eq!(losses.len(), 2);
/// ```
///
/// Every rank works on a thread of its own, so what the closure captures is moved into it. A batch is on the
/// [device](Self::devices) of its rank.
///
/// # What is shared, and what is not
///
/// - Policies and hooks see a gradient once, as the sum over all ranks.
/// - Every rank draws random numbers of its own in its forward pass and in blocks, which come from one seed a step
///   and do not depend on what the others draw: Burn's generators are one a process, so the ranks' forward passes
///   and the second runs of blocks take turns at them, and a closure must not wait for another rank, nor for a step of other
///   replicas on another thread, which ends with an error after a minute. What is
///   drawn later (in hooks, after the first gradient of a closure that runs the backward pass itself) comes from
///   where the generator is by then. [`draws_random_numbers`](crate::FusedConfig::draws_random_numbers) lets them run at
///   once where nothing is drawn.
/// - Running statistics are the mean over the ranks that have updated them after every step, as in Burn's own
///   multi-device training on one device.
/// - Parameters that carry a reparameterization and are trained (a LoRA base) are on all ranks, and stepped by their
///   owner at the end of the pass.
/// - The [memory recorder](crate::memory) counts the process, and knows no ranks.
///
/// # Faults
///
/// If a rank fails, the step ends on all ranks with an error that names it. Parameters whose gradients had come from
/// all ranks by then are updated, the others unchanged; weights and optimizer states stay readable, but for those
/// on a device that is gone: with [`Sharding::State`](crate::Sharding::State) it takes along the states it owns, with [`Sharding::Full`](crate::Sharding::Full), and in the
/// first step, the weights, too. What waits on the host stays.
pub struct FusedReplicas<M: Module> {
    /// The first rank, with what all have in common.
    first: FusedOptimizer<M>,
    crew: Crew<M>,
    setup: Setup,
}

impl<M: Module + 'static> FusedReplicas<M> {
    /// An ordinary Burn model with the current values, on the first device, or on the host if something waits there, as
    /// [`FusedOptimizer::model`]. With
    /// [`Sharding::Full`](crate::Sharding::Full) all weights come to that device for it.
    pub fn model(&self) -> M {
        self.first.model()
    }

    /// The current model for inference, on the first device, as [`FusedOptimizer::valid`].
    pub fn valid(&self) -> M {
        self.first.valid()
    }

    /// An ordinary Burn model with the averages of the weights, on the first device, as [`FusedOptimizer::averaged`].
    ///
    /// # Panics
    ///
    /// As that.
    pub fn averaged(&self) -> M {
        self.first.averaged()
    }

    /// The current model for inference, with the averages of its weights.
    #[cfg(feature = "train")]
    pub(crate) fn valid_averaged(&self) -> M {
        self.first.valid_averaged()
    }

    /// Takes the fusion apart into an ordinary model on the first device, and Burn's optimizer with its state.
    ///
    /// Gradients that were accumulated and not used are dropped.
    pub fn into_parts(self) -> (M, ModuleOptimizer) {
        let model = self.model();
        let optimizer = self.first.session.update().optimizer();
        (model, optimizer)
    }

    /// The state of the optimizer, as [`FusedOptimizer::to_record`]: one record of all ranks, which any number of
    /// devices goes on from, and stock Burn.
    ///
    /// # Panics
    ///
    /// As that.
    pub fn to_record(&self) -> OptimizerRecord {
        let record = self.first.session.update().to_record();
        match self.is_read_late() {
            true => record::read_at_once(record),
            false => record,
        }
    }

    /// Loads the state of the optimizer, as [`FusedOptimizer::load_record`].
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_load_record`](Self::try_load_record) returns.
    pub fn load_record(&mut self, record: OptimizerRecord) {
        self.first.load_record(record);
    }

    /// The fallible [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// As [`FusedOptimizer::try_load_record`].
    pub fn try_load_record(&mut self, record: OptimizerRecord) -> Result<(), FusedError> {
        self.first.try_load_record(record)
    }

    /// The structure of the model, without the values of its trainable parameters.
    #[cfg(feature = "train")]
    pub(crate) fn hollow(&self) -> M {
        self.first.hollow()
    }

    /// Puts another optimizer in, state and all, and returns the one before.
    #[cfg(feature = "train")]
    pub(crate) fn replace_optimizer(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        self.first.replace_optimizer(optimizer)
    }

    /// What the last pass did, on all ranks together.
    pub fn last_step(&self) -> &StepReport {
        self.first.last_step()
    }

    /// The bytes of weights and gradients on each rank.
    pub fn bytes(&self) -> Vec<RankBytes> {
        let group = self.crew.group();
        let forms = self.crew.forms(&self.first).enumerate();
        forms
            .map(|(rank, form)| RankBytes::of(form, group, rank))
            .collect()
    }

    /// The devices of the ranks, for what they compute with: with autodiff, and the gradient checkpointing strategy of the
    /// model, whichever the devices had that were named.
    pub fn devices(&self) -> &[Device] {
        &self.setup.devices
    }

    /// The rank that owns the parameter of this path; none if there is no such parameter in training.
    pub fn owner(&self, path: &str) -> Option<usize> {
        let parameters = self.first.form.inventory().sizes(Role::Released);
        let (id, _, _) = parameters.into_iter().find(|(_, found, _)| found == path)?;
        Some(self.crew.group().owner(id))
    }
}

impl<M: Module> Display for FusedReplicas<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let ranks = self.setup.devices.len();
        let sharding = self.first.config.sharding;
        write!(
            f,
            "{} on {ranks} ranks (sharding: {sharding:?})",
            self.first
        )
    }
}

impl<M: Module> std::fmt::Debug for FusedReplicas<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Display::fmt(self, f)
    }
}
