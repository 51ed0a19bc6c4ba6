use crate::config::FusedConfig;
use crate::placement::StorageTier;
use crate::policy::GlobalNormClippingConfig;
use crate::weights::Entry;

/// Bytes that a training holds between passes, and those that an update transfers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident {
    /// Weights on the device, without the copies of those on the host.
    pub(crate) weights: usize,
    /// Copies of weights in training that are stored on the host, in the type in which the device computes.
    pub(crate) copies: usize,
    /// States, averages and accumulated gradients on the device.
    pub(crate) states: usize,
    pub(crate) averages: usize,
    pub(crate) host_weights: usize,
    /// States, averages and accumulated gradients on the host.
    pub(crate) host_states: usize,
    /// The largest gradient of an update on the host.
    pub(crate) host_gradient: usize,
    /// Peak bytes on the device of one gradient and the states in flight during its update.
    pub(crate) states_in_flight: usize,
    /// Peak bytes on the device while one gradient is transferred, the next is computed, and the new weight is fetched.
    pub(crate) gradients_in_flight: usize,
    /// Bytes of the largest gradient in f32, if gradients in a half type are converted to be added to a sum in f32.
    pub(crate) gradient_in_f32: usize,
}

impl Resident {
    /// Returns the bytes of `parameters`, with `states` bytes of optimizer state each. If it `accumulates`, or if clipping needs all
    /// gradients of a step, they are in a buffer.
    pub(crate) fn of(
        parameters: &[Entry],
        states: &[usize],
        config: &FusedConfig,
        accumulates: bool,
    ) -> Self {
        let policy = config.placement_policy();
        let is_buffered = matches!(
            config.clipping,
            Some(GlobalNormClippingConfig::ExactInBuffer(_))
        );
        let has_buffer = accumulates || is_buffered;
        let sums_in_f32 = has_buffer && config.full_precision_accumulation;
        let mut in_flight = StatesInFlight::within(config.max_bytes_in_flight);
        let mut resident = Self::default();
        for (parameter, state) in parameters.iter().zip(states) {
            let (bytes, tier) = (parameter.bytes(), parameter.tier(&policy));
            match tier {
                StorageTier::Host => resident.host_weights += bytes,
                StorageTier::Device | StorageTier::StateOnHost => resident.weights += bytes,
            }
            if !parameter.is_trained() {
                continue;
            }
            let in_f32 = bytes.max(4 * parameter.elements());
            let average = config.averaging.as_ref().map_or(0, |_| in_f32);
            let sum = match config.full_precision_accumulation {
                _ if !has_buffer => 0,
                true => in_f32,
                false => bytes,
            };
            resident.averages += average;
            if sums_in_f32 && bytes < in_f32 {
                resident.gradient_in_f32 = resident.gradient_in_f32.max(in_f32);
            }
            let device = &mut resident.states;
            match policy.offload {
                Some(_) => resident.host_states += sum,
                None => *device += sum,
            }
            match tier {
                StorageTier::Host => {
                    let dtype = policy.compute_dtype(parameter.dtype);
                    let copy = parameter.elements() * dtype.size();
                    resident.copies += copy;
                    resident.host_states += state + average;
                    resident.host_gradient = resident.host_gradient.max(bytes);
                    resident.gradients_in_flight = resident.gradients_in_flight.max(2 * copy);
                }
                StorageTier::StateOnHost => {
                    resident.host_states += state;
                    *device += average;
                    let most = in_flight.with(bytes, *state);
                    resident.states_in_flight = resident.states_in_flight.max(most);
                }
                StorageTier::Device => *device += state + average,
            }
        }
        resident
    }
}

/// Bytes on the device for the update of a parameter whose state is offloaded.
#[derive(Debug, Default)]
struct StatesInFlight {
    limit: usize,
    gradient: usize,
    /// The three largest states that may be in flight at the same time, in descending order.
    states: [usize; 3],
}

impl StatesInFlight {
    fn within(limit: Option<usize>) -> Self {
        Self {
            limit: limit.unwrap_or(usize::MAX),
            ..Self::default()
        }
    }

    /// Returns the most bytes for any parameter so far, with one of these sizes added.
    fn with(&mut self, gradient: usize, state: usize) -> usize {
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
