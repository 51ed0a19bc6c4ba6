mod offload;
mod peaks;

use std::fmt::{Display, Formatter};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;

use crate::optimizer_record::{compact_records, read, written};
use crate::policy::Update;

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
        let mut measure = Measure {
            names: Vec::new(),
            optimizer,
            estimate: Self {
                parameters: 0,
                gradients: 0,
                optimizer_state: 0,
                largest_gradient: 0,
            },
        };
        model.visit(&mut measure);
        measure.estimate
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

struct Measure<'a> {
    names: Vec<String>,
    optimizer: &'a ModuleOptimizer,
    estimate: MemoryEstimate,
}

/// Bytes of the state of a parameter after a step.
fn state<const D: usize>(
    optimizer: &ModuleOptimizer,
    path: &str,
    id: ParamId,
    value: &Tensor<D>,
) -> usize {
    let mut update = Update::new(optimizer.clone());
    let zeros = value.zeros_like();
    let stepped = update.step(path, id, zeros.clone(), zeros, false);
    stepped.result.unwrap_or_else(|panic| panic.resume());
    // As it is kept, and not as stock Burn would record it.
    let record = compact_records(|| written(update.to_record()));
    let states = record.and_then(read).expect("Burn reads its own record");
    let state = states.get(&id.val()).into_iter();
    let tensors = state.flat_map(|state| &state.tensors);
    tensors.map(|tensor| tensor.byte_len()).sum()
}

impl ModuleVisitor for Measure<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        let bytes = value.shape().num_elements() * value.dtype().size();
        self.estimate.parameters += bytes;
        if value.is_require_grad() {
            self.estimate.gradients += bytes;
            self.estimate.largest_gradient = self.estimate.largest_gradient.max(bytes);
            let path = self.names.join(".");
            let state = state(self.optimizer, &path, param.id, &value.inner());
            self.estimate.optimizer_state += state;
        }
    }
}
