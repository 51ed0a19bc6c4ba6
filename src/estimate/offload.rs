use std::fmt::{Display, Formatter};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::{measure, parameters};
use crate::caught::catch;
use crate::config::FusedConfig;
use crate::layout::Rest;

/// What training holds on the device and on the host, if parts of it wait there.
///
/// ```
/// use backburn::{FusedConfig, Offload, OffloadConfig, OffloadEstimate};
/// use burn::{nn::LinearConfig, optim::AdamConfig, tensor::Device};
///
/// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
/// let config = FusedConfig::new().with_offload(Some(OffloadConfig::new(Offload::Updates)));
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
    /// into being, or a gradient and three states, one used, one coming and one leaving. The weights of two blocks come on top under
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
    pub fn new<M: Module>(model: &M, optimizer: &ModuleOptimizer, config: &FusedConfig) -> Self {
        let mut estimate = Self {
            device: 0,
            on_the_way: 0,
            host: 0,
        };
        let request = config.layout();
        let mut states_under_way = StatesUnderWay::within(config.max_bytes_under_way);
        // Bytes of the weights in training that rest on the host, as the device computes with them.
        let mut copies = 0;
        let parameters = parameters(model);
        let states = measure(optimizer, &parameters, false);
        let states = states.unwrap_or_else(|error| panic!("{error}")).bytes;
        for (parameter, state) in parameters.iter().zip(states) {
            let bytes = parameter.bytes();
            let (device, host, on_the_way) =
                match (parameter.rest(&request), parameter.is_trained()) {
                    (Rest::Host, true) => {
                        let dtype = request.compute_dtype(parameter.dtype);
                        let copy = parameter.elements() * dtype.size();
                        copies += copy;
                        (0, bytes + state, 2 * copy)
                    }
                    (Rest::Host, false) => (0, bytes, 0),
                    (Rest::StateOnHost, _) => (bytes, state, states_under_way.with(bytes, state)),
                    (Rest::Device, true) => (bytes + state, 0, bytes),
                    (Rest::Device, false) => (bytes, 0, 0),
                };
            estimate.device += device;
            estimate.host += host;
            estimate.on_the_way = estimate.on_the_way.max(on_the_way);
        }
        let offload = config.offload.as_ref();
        estimate.device += offload.map_or(0, |offload| offload.kept_of(copies));
        estimate
    }
}

/// Bytes that come into being on the host while `model` trains: states, and two gradients of the largest parameter that is stepped there. An
/// optimizer that refuses a parameter has no states; it is told of where it steps.
pub(crate) fn made_on_host<M: Module>(
    model: &M,
    optimizer: &ModuleOptimizer,
    config: &FusedConfig,
) -> usize {
    if config.offload.is_none() {
        return 0;
    }
    let request = config.layout();
    let parameters = parameters(model);
    let states = catch(|| measure(optimizer, &parameters, false)).ok();
    let states = states.and_then(Result::ok).map(|states| states.bytes);
    let states = states.unwrap_or_else(|| vec![0; parameters.len()]);
    let (mut made, mut largest) = (0, 0);
    for (parameter, state) in parameters.iter().zip(states) {
        match parameter.rest(&request) {
            Rest::Host if parameter.is_trained() => {
                made += state;
                largest = largest.max(parameter.bytes());
            }
            Rest::StateOnHost => made += state,
            Rest::Host | Rest::Device => {}
        }
    }
    made + 2 * largest
}

/// What is on the device for the update of a parameter whose state waits on the host.
#[derive(Debug, Default)]
pub(crate) struct StatesUnderWay {
    limit: usize,
    gradient: usize,
    /// The largest one, and the two next ones that may be under way beside it, in falling order.
    states: [usize; 3],
}

impl StatesUnderWay {
    /// Where so many bytes may be under way.
    pub(crate) fn within(limit: Option<usize>) -> Self {
        Self {
            limit: limit.unwrap_or(usize::MAX),
            ..Self::default()
        }
    }

    /// Bytes for any of the parameters so far, at most, with one of so many bytes whose state has so many.
    pub(crate) fn with(&mut self, gradient: usize, state: usize) -> usize {
        self.gradient = self.gradient.max(gradient);
        let mut less = state;
        for (place, kept) in self.states.iter_mut().enumerate() {
            if less > *kept && (place == 0 || less <= self.limit) {
                std::mem::swap(kept, &mut less);
            }
        }
        self.gradient + self.states.iter().sum::<usize>()
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
