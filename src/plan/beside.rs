//! What a training holds beside its passes.

use crate::config::FusedConfig;
use crate::estimate::{States, StatesUnderWay};
use crate::layout::Rest;
use crate::replica::Ownership;
use crate::weights::Entry;

use super::variant::Variant;

/// Bytes of a training beside a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// Where the model computes.
    pub(super) device: usize,
    /// On the host, if that is not the same.
    pub(super) host: usize,
    /// Seconds of the updates.
    pub(super) seconds: f64,
}

impl Beside {
    /// With these `states`, and what `config` says waits on the host; of several ranks, on the one that holds most. If gradients are `summed`,
    /// there is a buffer for them.
    pub(super) fn of(
        variant: &Variant,
        states: &States,
        config: &FusedConfig,
        summed: bool,
        ranks: usize,
    ) -> Self {
        let (mut devices, mut host) = (vec![0; ranks], 0);
        let mut on_the_way = states.update;
        let mut states_under_way = StatesUnderWay::within(config.max_bytes_under_way);
        let trained = variant.parameters.iter().filter(|it| it.is_trained());
        let owners = Ownership::BySize.assign(trained.map(Entry::size).collect(), ranks);
        let request = config.layout();
        for (parameter, state) in variant.parameters.iter().zip(&states.bytes) {
            let (bytes, rest) = (parameter.bytes(), parameter.rest(&request));
            if !parameter.is_trained() {
                host += if rest == Rest::Host { bytes } else { 0 };
                continue;
            }
            let device = &mut devices[owners[&parameter.id]];
            let sum = match config.full_precision_accumulation {
                _ if !summed => 0,
                true => bytes.max(4 * parameter.elements()),
                false => bytes,
            };
            match request.offload {
                Some(_) => host += sum,
                None => *device += sum,
            }
            let average = match config.averaging {
                Some(_) => parameter.dtype.size().max(4) * parameter.elements(),
                None => 0,
            };
            match rest {
                Rest::Host => {
                    host += bytes + state + average;
                    // One gradient leaves while the next comes into being, and the new weight comes back.
                    on_the_way = on_the_way.max(2 * bytes);
                }
                Rest::StateOnHost => {
                    host += state;
                    *device += average;
                    // What an update takes for itself is there beside them.
                    let under_way = states.update + states_under_way.with(bytes, *state);
                    on_the_way = on_the_way.max(under_way);
                }
                Rest::Device => *device += state + average,
            }
        }
        if ranks > 1 {
            // Gradients of the others wait for the slowest, and the new weight comes.
            let largest = variant.largest();
            let each = config.max_bytes_under_way.unwrap_or(largest / 4 * 5);
            on_the_way += (ranks - 1) * each + 2 * largest;
        }
        Self {
            device: devices.into_iter().max().unwrap_or(0) + on_the_way,
            host,
            seconds: states.seconds / ranks as f64,
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::estimate::{measure, parameters};
    use crate::optim::AdamWConfig;
    use crate::plan::variant::Footing;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    #[test]
    fn ranks_share_the_states_and_wait_for_each_other() {
        let device = Device::flex().autodiff();
        let linear = |_| LinearConfig::new(64, 64).init(&device);
        let model: Vec<Linear> = (0..4).map(linear).collect();
        let footing = Footing {
            in_bf16: false,
            on_host: false,
        };
        let variant = Variant::new(footing, parameters(&model), usize::MAX);
        let states = measure(&AdamWConfig::new().init(), &variant.parameters, true).unwrap();
        let (sum, update) = (states.sum(), states.update);
        let on = |ranks| {
            let config = FusedConfig::new();
            Beside::of(&variant, &states, &config, false, ranks).device
        };
        assert_eq!(on(1), sum + update);
        let largest = 4 * 64 * 64;
        assert_eq!(on(2), sum / 2 + update + largest / 4 * 5 + 2 * largest);
    }
}
