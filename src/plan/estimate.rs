use std::fmt::{Display, Formatter};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use crate::config::FusedConfig;
use crate::device::warm_threads;
use crate::footprint::{Resident, measure, parameters};
use crate::weights::{Entry, is_for_inference};

/// An estimate of the memory of a training without its activations, before its first step.
///
/// The [`Planner`](crate::Planner) measures activations, too.
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
    /// Bytes on the device between two steps, with the buffer of gradients that
    /// [clipping](crate::GlobalNormClippingConfig::ExactInBuffer) fills in a step. For [`Offload::Weights`](crate::Offload::Weights) it assumes that all
    /// larger parameters are read in blocks of one size. Parameters that are read outside of blocks add to it.
    pub device: usize,
    /// The most bytes that are in transfer to or from the host at once, in addition to `device`: two gradients of the largest
    /// parameter, or one gradient and three states. With [`Offload::Weights`](crate::Offload::Weights), add the weights of two blocks to
    /// this and to [`fused`](Self::fused).
    pub transfer: usize,
    /// Bytes in host memory, if parts of the training are [offloaded](FusedConfig::offload).
    pub host: usize,
    /// Bytes at the peak of stock Burn: the optimizer after the backward pass.
    pub stock: usize,
    /// Bytes at the peak of fused training.
    pub fused: usize,
}

impl MemoryEstimate {
    /// Estimates the memory of `model` with `optimizer`. Runs the optimizer on zeros of the shape of each parameter, or
    /// on three slices of a large one, and measures the states. Lazy parameters are initialized.
    ///
    /// # Panics
    ///
    /// If the optimizer does not support a parameter, for example Muon and a parameter that is not a matrix.
    pub fn new<M: Module>(model: &M, optimizer: &ModuleOptimizer) -> Self {
        Self::new_with_config(model, optimizer, &FusedConfig::new())
    }

    /// Estimates the memory of a training with `config`, as [`new`](Self::new) does. Offloaded bytes are on the host,
    /// and the average of the weights is counted.
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
        // Without autodiff no parameter requires a gradient.
        let with_autodiff = (is_for_inference(model) == Some(true)).then(|| model.clone().train());
        let parameters = parameters(with_autodiff.as_ref().unwrap_or(model));
        if let Some(parameter) = parameters.first() {
            warm_threads(&parameter.device);
        }
        let states = measure(optimizer, &parameters, false);
        let states = states.unwrap_or_else(|error| panic!("{error}"));
        let trained = || parameters.iter().filter(|it| it.is_trained());
        let gradients: usize = trained().map(Entry::bytes).sum();
        let largest_gradient = trained().map(Entry::bytes).max().unwrap_or(0);
        let tensors = states.tensors();
        let optimizer_state = tensors.iter().sum();
        let resident = Resident::of(&parameters, &tensors, config, false);
        let offload = config.offload.as_ref();
        let copies = offload.map_or(0, |offload| offload.device_bytes_of(resident.copies));
        let device = resident.weights + resident.states + copies;
        let transfer = resident.gradients_in_flight.max(resident.states_in_flight);
        let in_update = resident.states_in_flight.max(largest_gradient) + states.update;
        let bytes: usize = parameters.iter().map(Entry::bytes).sum();
        let held = bytes + optimizer_state + resident.averages;
        Self {
            parameters: bytes,
            gradients,
            optimizer_state,
            averages: resident.averages,
            largest_gradient,
            device,
            transfer,
            host: resident.host_weights + resident.host_states,
            stock: held + gradients + states.update,
            fused: device + resident.gradients_in_flight.max(in_update),
        }
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
        write!(
            f,
            "\nat the peak, without activations: stock {:.1} MB, fused {:.1} MB",
            mega(self.stock),
            mega(self.fused)
        )
    }
}
