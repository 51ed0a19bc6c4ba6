use std::fmt::{Display, Formatter};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;

use super::state;
use crate::offload::OffloadConfig;

/// What training holds on the device and on the host, if parts of it wait there.
///
/// ```
/// use backburn::{Offload, OffloadConfig, OffloadEstimate};
/// use burn::{nn::LinearConfig, optim::AdamConfig, tensor::Device};
///
/// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
/// let config = OffloadConfig::new(Offload::Updates);
/// let estimate = OffloadEstimate::new(&model, &AdamConfig::new().init(), &config);
/// assert!(estimate.device < estimate.host);
/// println!("{estimate}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadEstimate {
    /// Bytes on the device between two steps. Under [`Offload::Weights`](crate::Offload::Weights) as if all larger
    /// parameters were read in blocks of one size: those that are read outside of blocks come on top.
    pub device: usize,
    /// Bytes that come over in a step beside that, at most: the largest gradient twice, one leaving and one coming
    /// into being, or a parameter's gradient and state. The weights of two blocks come on top under
    /// [`Offload::Weights`](crate::Offload::Weights).
    pub on_the_way: usize,
    /// Bytes in host memory.
    pub host: usize,
}

impl OffloadEstimate {
    /// Measures `model` with `optimizer` as [`MemoryEstimate::new`](super::MemoryEstimate::new) does.
    ///
    /// # Panics
    ///
    /// As [`MemoryEstimate::new`](super::MemoryEstimate::new).
    pub fn new<M: Module>(model: &M, optimizer: &ModuleOptimizer, config: &OffloadConfig) -> Self {
        let mut divide = Divide {
            names: Vec::new(),
            optimizer,
            config,
            copies: 0,
            estimate: Self {
                device: 0,
                on_the_way: 0,
                host: 0,
            },
        };
        model.visit(&mut divide);
        divide.estimate.device += config.kept_of(divide.copies);
        divide.estimate
    }
}

struct Divide<'a> {
    names: Vec<String>,
    optimizer: &'a ModuleOptimizer,
    config: &'a OffloadConfig,
    /// Bytes of the weights that rest on the host, as the device computes with them.
    copies: usize,
    estimate: OffloadEstimate,
}

impl ModuleVisitor for Divide<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        let elements = value.shape().num_elements();
        let bytes = elements * value.dtype().size();
        if !value.is_require_grad() {
            match self.config.frozen_waits(elements) {
                true => self.estimate.host += bytes,
                false => self.estimate.device += bytes,
            }
            return;
        }
        let state = state(
            self.optimizer,
            &self.names.join("."),
            param.id,
            &value.clone().inner(),
        );
        let copy = elements * self.config.compute_dtype(value.dtype()).size();
        let (device, host, on_the_way) = if self.config.rests_on_host(elements) {
            self.copies += copy;
            (0, bytes + state, 2 * copy)
        } else if self.config.state_waits(elements) {
            (bytes, state, bytes + state)
        } else {
            (bytes + state, 0, bytes)
        };
        self.estimate.device += device;
        self.estimate.host += host;
        self.estimate.on_the_way = self.estimate.on_the_way.max(on_the_way);
    }
}

impl Display for OffloadEstimate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        write!(
            f,
            "device {:.1} MB and up to {:.1} MB on the way, host {:.1} MB, beside the activations",
            mega(self.device),
            mega(self.on_the_way),
            mega(self.host)
        )
    }
}
