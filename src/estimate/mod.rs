mod bookkeeping;
mod concurrent_calls;
mod dry_run;

use std::fmt::{Display, Formatter};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use crate::config::FusedConfig;
use crate::device::warm_threads;
use crate::footprint::{Resident, measure, parameters};
use crate::parameters::ModelKey;
use crate::weights::Entry;

use bookkeeping::Bookkeeping;

pub(crate) use concurrent_calls::ConcurrentCalls;

/// An estimate of the memory of a training, before its first step.
///
/// Without a [dry run](Self::with_dry_run) the peaks leave activations out.
///
/// ```
/// use backburn::MemoryEstimate;
/// use burn::{nn::LinearConfig, optim::AdamConfig, tensor::Device};
///
/// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
/// let estimate = MemoryEstimate::new(&model, &AdamConfig::new().init());
/// assert_eq!(estimate.optimizer_state, 2 * estimate.parameters);
/// println!("{estimate}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// The model that is estimated.
    pub model: ModelKey,
    /// Bytes of all float parameters: P.
    pub parameters: usize,
    /// Bytes of the gradients of the trained parameters: G.
    pub gradients: usize,
    /// Bytes of the optimizer state after the first step: O.
    pub optimizer_state: usize,
    /// Bytes of the [average of the weights](FusedConfig::averaging), if the config has one.
    pub averages: usize,
    /// Bytes of the largest gradient, which fused training holds too.
    pub largest_gradient: usize,
    /// Peak bytes of the update of one parameter in addition to all these. Measured if the program runs on the
    /// [`RecordingAllocator`](crate::memory::RecordingAllocator), otherwise one gradient.
    pub update: usize,
    /// Peak bytes of gradients and an update while stock Burn updates one parameter after the other.
    pub gradients_and_update: usize,
    /// Bytes on the device between two steps. Under [`Offload::Weights`](crate::Offload::Weights) as if all larger
    /// parameters were read in blocks of one size: parameters that are read outside of blocks add to it.
    pub device: usize,
    /// Maximum bytes in transfer to or from the host in a step, in addition to `device`: the largest gradient twice, or a gradient and
    /// three states. Under [`Offload::Weights`](crate::Offload::Weights) the weights of two blocks add to it.
    pub transfer: usize,
    /// Bytes in host memory, if parts of the training are [offloaded](FusedConfig::offload).
    pub host: usize,
    /// Bytes at the peak of stock Burn: the optimizer after the backward pass.
    pub stock: usize,
    /// Bytes at the peak of fused training whose blocks keep their activations.
    pub fused: usize,
    /// Bytes at the peak of fused training whose blocks are recomputed.
    pub recomputed: usize,
    /// Bytes that the process holds for the parameters in addition to their tensors.
    bookkeeping: Bookkeeping,
    has_dry_run: bool,
}

impl MemoryEstimate {
    /// Measures `model` with `optimizer`: steps zeros instead of each parameter, or of three slices of a large one, and measures the
    /// states. Lazy parameters are initialized.
    ///
    /// # Panics
    ///
    /// If the optimizer does not support a parameter, such as Muon a parameter that is not of rank 2.
    pub fn new<M: Module>(model: &M, optimizer: &ModuleOptimizer) -> Self {
        Self::new_with_config(model, optimizer, &FusedConfig::new())
    }

    /// Measures as [`new`](Self::new) does, for a training with `config`: offloaded bytes are on the host, and the average of the
    /// weights is counted.
    ///
    /// ```
    /// use backburn::{FusedConfig, MemoryEstimate, Offload, OffloadConfig};
    /// use burn::{nn::LinearConfig, optim::AdamConfig, tensor::Device};
    ///
    /// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let config = FusedConfig::new().with_offload(Some(OffloadConfig::new(Offload::Updates)));
    /// let estimate = MemoryEstimate::new_with_config(&model, &AdamConfig::new().init(), &config);
    /// assert!(estimate.device < estimate.host);
    /// ```
    ///
    /// # Panics
    ///
    /// Where [`new`](Self::new) panics.
    pub fn new_with_config<M: Module>(
        model: &M,
        optimizer: &ModuleOptimizer,
        config: &FusedConfig,
    ) -> Self {
        let parameters = parameters(model);
        if let Some(parameter) = parameters.first() {
            warm_threads(&parameter.device);
        }
        let states = measure(optimizer, &parameters, false);
        let states = states.unwrap_or_else(|error| panic!("{error}"));
        let trained = || parameters.iter().filter(|it| it.is_trained());
        let gradients: usize = trained().map(Entry::bytes).sum();
        let largest_gradient = trained().map(Entry::bytes).max().unwrap_or(0);
        let mut left = gradients;
        let updates = parameters.iter().zip(&states.updates);
        let updates = updates.filter(|(parameter, _)| parameter.is_trained());
        // Each gradient is freed with its update.
        let most = updates.map(|(parameter, update)| {
            let most = left + update;
            left -= parameter.bytes();
            most
        });
        let gradients_and_update = most.max().unwrap_or(0);

        let tensors = states.tensors();
        let optimizer_state = tensors.iter().sum();
        let resident = Resident::of(&parameters, &tensors, config, false, 1);
        let offload = config.offload.as_ref();
        let copies = offload.map_or(0, |offload| offload.device_bytes_of(resident.copies));
        let device = resident.weights + resident.states + copies;
        let transfer = resident.gradients_in_flight.max(resident.states_in_flight);
        let bookkeeping = Bookkeeping::of(&parameters, states.sum() - optimizer_state);
        let bytes: usize = parameters.iter().map(Entry::bytes).sum();
        let fused = device + bookkeeping.fused + transfer.max(largest_gradient + states.update);
        let held = bytes + optimizer_state + resident.averages;
        Self {
            model: ModelKey::of(model),
            parameters: bytes,
            gradients,
            optimizer_state,
            averages: resident.averages,
            largest_gradient,
            update: states.update,
            gradients_and_update,
            device,
            transfer,
            host: resident.host_weights + resident.host_states,
            stock: held + bookkeeping.stock + gradients_and_update,
            fused,
            recomputed: fused,
            bookkeeping,
            has_dry_run: false,
        }
    }

    /// Returns the bytes by which fusing lowers the peak, if the forward pass leaves `activations` bytes.
    ///
    /// Stock training peaks at the start of the backward pass (P + O + activations) or at its end
    /// (P + O + G). Fused training peaks at the start, with one gradient. So fusing helps if the
    /// gradients are larger than the activations.
    pub fn saved(&self, activations: usize) -> usize {
        let fused = activations + self.largest_gradient;
        self.gradients.max(fused) - fused
    }
}

impl Display for MemoryEstimate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        write!(
            f,
            "parameters {:.1} MB, gradients {:.1} MB, optimizer state {:.1} MB",
            mega(self.parameters),
            mega(self.gradients),
            mega(self.optimizer_state),
        )?;
        if self.averages > 0 {
            write!(f, ", averages {:.1} MB", mega(self.averages))?;
        }
        if self.host > 0 {
            write!(
                f,
                "\ndevice {:.1} MB and up to {:.1} MB in transfer, host {:.1} MB, without activations",
                mega(self.device),
                mega(self.transfer),
                mega(self.host)
            )?;
        }
        let activations = if self.has_dry_run {
            ""
        } else {
            ", without activations"
        };
        write!(
            f,
            "\nat the peak{activations}: stock {:.1} MB, fused {:.1} MB, fused with recomputed blocks {:.1} MB",
            mega(self.stock),
            mega(self.fused),
            mega(self.recomputed)
        )
    }
}
