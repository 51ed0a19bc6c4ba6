mod measure;
mod offload;
mod peaks;

use std::fmt::{Display, Formatter};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use measure::measure;

pub use offload::OffloadEstimate;
pub use peaks::PeakEstimate;

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
    /// Bytes of all float parameters: P.
    pub parameters: usize,
    /// Bytes of the gradients of those in training: G.
    pub gradients: usize,
    /// Bytes of the optimizer's state after the first step: O.
    pub optimizer_state: usize,
    /// Bytes of the largest gradient, which fused training holds too.
    pub largest_gradient: usize,
}

impl MemoryEstimate {
    /// Measures `model` with `optimizer`: steps one parameter after the other with zeros in its
    /// place, and looks at the state. Takes the time of a step and the memory of the largest
    /// parameter a few times; lazy parameters are initialized.
    ///
    /// # Panics
    ///
    /// If the optimizer refuses a parameter, as Muon does unless it is of rank 2.
    pub fn new<M: Module>(model: &M, optimizer: &ModuleOptimizer) -> Self {
        let mut estimate = Self {
            parameters: 0,
            gradients: 0,
            optimizer_state: 0,
            largest_gradient: 0,
        };
        for parameter in measure(model, optimizer) {
            let bytes = parameter.bytes();
            estimate.parameters += bytes;
            if let Some(state) = parameter.state {
                estimate.gradients += bytes;
                estimate.optimizer_state += state;
                estimate.largest_gradient = estimate.largest_gradient.max(bytes);
            }
        }
        estimate
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
