mod bookkeeping;
mod offload;
mod peaks;
mod states;

use std::fmt::{Display, Formatter};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use crate::device::warm_threads;
use crate::parameters::ModelKey;
use crate::weights::Entry;

use bookkeeping::Bookkeeping;

pub use offload::OffloadEstimate;
pub(crate) use offload::{StatesUnderWay, made_on_host};
pub use peaks::PeakEstimate;
pub(crate) use states::{States, measure, parameters};

/// What training will hold, and what fusing would save, before any training.
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
    /// Of which model.
    pub model: ModelKey,
    /// Bytes of all float parameters: P.
    pub parameters: usize,
    /// Bytes of the gradients of those in training: G.
    pub gradients: usize,
    /// Bytes of the optimizer's state after the first step: O.
    pub optimizer_state: usize,
    /// Bytes of the largest gradient, which fused training holds too.
    pub largest_gradient: usize,
    /// The most bytes that the update of one parameter takes beside all these. Measured where the program runs on the
    /// [`RecordingAllocator`](crate::memory::RecordingAllocator), elsewhere one gradient.
    pub update: usize,
    /// The most bytes of gradients and an update while stock Burn updates one parameter after the other.
    pub gradients_and_update: usize,
    /// What the process holds for the parameters beside their tensors.
    bookkeeping: Bookkeeping,
}

impl MemoryEstimate {
    /// Measures `model` with `optimizer`: steps zeros in the place of one parameter after the other, of a large one in the place of
    /// three slices, and looks at the state. Lazy parameters are initialized.
    ///
    /// # Panics
    ///
    /// If the optimizer refuses a parameter, as Muon does unless it is of rank 2.
    pub fn new<M: Module>(model: &M, optimizer: &ModuleOptimizer) -> Self {
        let parameters = parameters(model);
        if let Some(parameter) = parameters.first() {
            warm_threads(&parameter.device);
        }
        let states = measure(optimizer, &parameters, false);
        let states = states.unwrap_or_else(|error| panic!("{error}"));
        let trained = || parameters.iter().filter(|it| it.is_trained());
        let gradients: usize = trained().map(Entry::bytes).sum();
        let mut left = gradients;
        let updates = parameters.iter().zip(&states.updates);
        let updates = updates.filter(|(parameter, _)| parameter.is_trained());
        // Each gradient goes with its update.
        let most = updates.map(|(parameter, update)| {
            let most = left + update;
            left -= parameter.bytes();
            most
        });
        Self {
            model: ModelKey::of(model),
            parameters: parameters.iter().map(Entry::bytes).sum(),
            gradients,
            optimizer_state: states.tensors,
            largest_gradient: trained().map(Entry::bytes).max().unwrap_or(0),
            update: states.update,
            gradients_and_update: most.max().unwrap_or(0),
            bookkeeping: Bookkeeping::of(&parameters, states.sum() - states.tensors),
        }
    }

    /// Bytes by which fusing lowers the peak, if the forward pass leaves `activations` bytes.
    ///
    /// Stock training peaks when the backward pass starts (P + O + activations) or when it ends
    /// (P + O + G), fused training when it starts, with one gradient. So fusing helps as far as the
    /// gradients are larger than the activations.
    pub fn saved(&self, activations: usize) -> usize {
        let fused = activations + self.largest_gradient;
        self.gradients.max(fused) - fused
    }
}

impl Display for MemoryEstimate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        let stock = self.parameters + self.optimizer_state + self.gradients;
        let saved = self.saved(0);
        write!(
            f,
            "parameters {:.1} MB, gradients {:.1} MB, optimizer state {:.1} MB\n\
             fusing saves up to {:.1} MB ({:.0} %), less the activations; it is worth it if these \
             are well below {:.1} MB when the backward pass starts",
            mega(self.parameters),
            mega(self.gradients),
            mega(self.optimizer_state),
            mega(saved),
            100.0 * saved as f64 / stock.max(1) as f64,
            mega(saved)
        )
    }
}
