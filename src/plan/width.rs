//! What is known of a training with weights of one type in one place.

use std::fmt::{Display, Formatter};

use burn::tensor::FloatDType;

use crate::config::FusedConfig;
use crate::estimate::{States, StatesUnderWay};
use crate::layout::{Request, Rest};
use crate::offload::{Offload, OffloadConfig, WaitingBlocks};
use crate::optim::{StateFormat, WeightAveragingConfig, WeightFormat};
use crate::replica::Ownership;
use crate::weights::Entry;

use super::climb::AT_FIRST;
use super::ladder::{Fidelity, Rung, in_millionths};
use super::pass::{Pass, Run};

/// How states and weights are kept; none as the optimizer says.
pub(super) type Formats = (Option<StateFormat>, Option<WeightFormat>);

/// In which type the weights are, and where: trainings that differ in these are measured each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footing {
    /// In bf16; else in the type of the model.
    pub(super) in_bf16: bool,
    /// Those of blocks wait on the host.
    pub(super) on_host: bool,
}

impl Footing {
    /// The type of the weights; none is that of the model.
    pub(super) fn dtype(self) -> Option<FloatDType> {
        self.in_bf16.then_some(FloatDType::BF16)
    }

    /// What waits on the host while it is measured.
    pub(super) fn offload(self) -> Option<OffloadConfig> {
        let weights = Offload::Weights(WaitingBlocks::All);
        self.on_host.then(|| OffloadConfig::new(weights))
    }
}

impl Display for Footing {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.in_bf16 {
            "in bf16"
        } else {
            "in their type"
        })?;
        f.write_str(if self.on_host { ", on the host" } else { "" })
    }
}

/// What was measured with weights of one footing.
#[derive(Clone, Debug)]
pub(super) struct Width {
    pub(super) footing: Footing,
    pub(super) parameters: Vec<Entry>,
    /// Bytes of weights that somebody else holds, too: the first update makes a copy of each.
    pub(super) shared: usize,
    pub(super) states: Vec<(Formats, States)>,
    /// Bytes of the notes of an optimizer without states, that steps are tried with.
    pub(super) notes: usize,
    /// Bytes in use where passes have ended early, the fewest.
    pub(super) ended_at: Option<usize>,
    /// Over more and more items.
    pub(super) passes: Vec<Pass>,
    /// A pass over the whole batch as stock Burn does it.
    pub(super) stock: Option<Run>,
    /// Bytes in use after all passes.
    pub(super) left: usize,
}

/// Where the gradients of micro-batches are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// In no buffer.
    None,
    /// In the type of the parameter.
    AsParameter,
    /// In f32, if that is more.
    InFull,
}

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

impl Width {
    /// Nothing yet of `parameters`, for which so many bytes have come into being.
    pub(super) fn new(footing: Footing, parameters: Vec<Entry>, held: usize) -> Self {
        let bytes: usize = parameters.iter().map(Entry::bytes).sum();
        let missing = bytes.saturating_sub(held);
        // Weights on the host have no bytes where they are looked for.
        let are_shared = !footing.on_host && missing > bytes / 64;
        Self {
            footing,
            parameters,
            shared: if are_shared { missing } else { 0 },
            states: Vec::new(),
            notes: 0,
            ended_at: None,
            passes: Vec::new(),
            stock: None,
            left: 0,
        }
    }

    /// Bytes that a pass takes at least if none has come to its end: those in use before, and what it takes in any case, or what one has
    /// taken until it was ended.
    pub(super) fn least_in_pass(&self) -> usize {
        let in_any_case = self.left + 2 * self.largest() + AT_FIRST;
        in_any_case.max(self.ended_at.unwrap_or(0))
    }

    /// A training with stock Burn, if its pass was measured.
    pub(super) fn with_stock(&self) -> Option<Rung> {
        let (run, states) = (self.stock?, self.states_in((None, None))?);
        let after = run.start + self.gradients() + states.update;
        Some(Rung {
            name: "stock Burn".to_string(),
            device_bytes: run.peak.max(after) + states.sum(),
            host_bytes: 0,
            seconds: Some(in_millionths(run.seconds + states.seconds)),
            fidelity: Fidelity::Exact,
        })
    }

    /// Whether a pass of stock Burn over `batch` items stays within `budget`.
    pub(super) fn room_for_stock(&self, batch: usize, budget: usize) -> bool {
        let pass = self.passes.iter().find(|pass| pass.items == batch);
        let kept = pass.and_then(|pass| pass.none_twice());
        let is_plain = !self.footing.in_bf16 && !self.footing.on_host;
        is_plain && kept.is_some_and(|kept| kept.run.peak + self.gradients() <= budget)
    }

    /// Bytes in use before a pass. What larger passes have made the backend keep for itself stays.
    pub(super) fn floor(&self) -> usize {
        let runs = self.passes.iter().flat_map(|pass| {
            let runs = [pass.all_twice(), pass.none_twice()];
            runs.into_iter().flatten()
        });
        let start = runs.map(|kept| kept.run.start).fold(self.left, usize::max);
        start + self.shared
    }

    pub(super) fn states_in(&self, formats: Formats) -> Option<&States> {
        let mut states = self.states.iter();
        states
            .find(|(known, _)| *known == formats)
            .map(|(_, states)| states)
    }

    /// Bytes of the largest gradient.
    pub(super) fn largest(&self) -> usize {
        let trained = self.parameters.iter().filter(|it| it.is_trained());
        trained.map(Entry::bytes).max().unwrap_or(0)
    }

    /// Bytes of the gradients of all parameters in training.
    pub(super) fn gradients(&self) -> usize {
        let trained = self.parameters.iter().filter(|it| it.is_trained());
        trained.map(Entry::bytes).sum()
    }

    /// What is held beside a pass with states in `formats` and these `sums`, and what `offload` says waits on the host; of several
    /// ranks, on the one that holds most.
    pub(super) fn beside(
        &self,
        formats: Formats,
        sums: Sums,
        config: &FusedConfig,
        offload: Option<&OffloadConfig>,
        ranks: usize,
    ) -> Option<Beside> {
        let states = self.states_in(formats)?;
        let (mut devices, mut host) = (vec![0; ranks], 0);
        let mut on_the_way = states.update;
        let mut states_under_way = StatesUnderWay::within(config.max_bytes_under_way);
        let trained = self.parameters.iter().filter(|it| it.is_trained());
        let owners = Ownership::BySize.assign(trained.map(Entry::size).collect(), ranks);
        let request = Request {
            offload: offload.cloned(),
            ..config.layout()
        };
        for (parameter, state) in self.parameters.iter().zip(&states.bytes) {
            let (bytes, rest) = (parameter.bytes(), parameter.rest(&request));
            if !parameter.is_trained() {
                host += if rest == Rest::Host { bytes } else { 0 };
                continue;
            }
            let device = &mut devices[owners[&parameter.id]];
            let sum = match sums {
                Sums::None => 0,
                Sums::AsParameter => bytes,
                Sums::InFull => bytes.max(4 * parameter.elements()),
            };
            match offload {
                Some(_) => host += sum,
                None => *device += sum,
            }
            let averaging = config.averaging.as_ref();
            let average = averaging.map_or(0, |it| average(it, parameter));
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
            let each = config.max_bytes_under_way.unwrap_or(self.largest() / 4 * 5);
            on_the_way += (ranks - 1) * each + 2 * self.largest();
        }
        Some(Beside {
            device: devices.into_iter().max().unwrap_or(0) + on_the_way,
            host,
            seconds: states.seconds / ranks as f64,
        })
    }
}

/// Bytes of the average of `parameter`.
fn average(averaging: &WeightAveragingConfig, parameter: &Entry) -> usize {
    /// Smaller ones are kept in full.
    const SMALL: usize = 4096;
    let elements = parameter.elements();
    let of_one = match averaging.format {
        _ if !averaging.covers(&parameter.path) => 0,
        WeightFormat::Stochastic if elements >= SMALL => 2,
        WeightFormat::Split24 if elements >= SMALL => 3,
        _ => parameter.dtype.size().max(4),
    };
    of_one * elements
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::estimate::{measure, parameters};
    use crate::optim::AdamWConfig;
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
        let mut width = Width::new(footing, parameters(&model), usize::MAX);
        let states = measure(&AdamWConfig::new().init(), &width.parameters, true).unwrap();
        let (sum, update) = (states.sum(), states.update);
        width.states.push(((None, None), states));
        let on = |ranks| {
            let config = FusedConfig::new();
            let beside = width.beside((None, None), Sums::None, &config, None, ranks);
            beside.unwrap().device
        };
        assert_eq!(on(1), sum + update);
        let largest = 4 * 64 * 64;
        assert_eq!(on(2), sum / 2 + update + largest / 4 * 5 + 2 * largest);
    }
}
