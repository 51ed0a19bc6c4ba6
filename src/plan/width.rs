//! What is known of a training with weights of one type.

use burn::tensor::FloatDType;

use crate::config::FusedConfig;
use crate::estimate::{Parameter, States};
use crate::offload::OffloadConfig;
use crate::optim::{StateFormat, WeightFormat};

use super::climb::AT_FIRST;
use super::pass::{Pass, Run};

/// How states and weights are kept; none as the optimizer says.
pub(super) type Formats = (Option<StateFormat>, Option<WeightFormat>);

/// What threads keep for themselves differs from run to run by about so many bytes.
const SLACK: usize = 1 << 17;

/// What was measured with weights of one type.
#[derive(Clone, Debug)]
pub(super) struct Width {
    /// None is that of the model.
    pub(super) dtype: Option<FloatDType>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) states: Vec<(Formats, States)>,
    /// Over more and more items.
    pub(super) passes: Vec<Pass>,
    /// A pass over the whole batch as stock Burn does it.
    pub(super) stock: Option<Run>,
    /// Bytes in use after all passes.
    pub(super) left: usize,
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
    pub(super) fn new(dtype: Option<FloatDType>, parameters: Vec<Parameter>) -> Self {
        Self {
            dtype,
            parameters,
            states: Vec::new(),
            passes: Vec::new(),
            stock: None,
            left: 0,
        }
    }

    /// Bytes in use before a pass. What larger passes have made the backend keep for itself stays; it may keep a little more.
    pub(super) fn floor(&self) -> usize {
        let runs = self.passes.iter().flat_map(|pass| {
            let twice = pass.twice.as_ref().map(|twice| twice.run);
            [twice, pass.kept].into_iter().flatten()
        });
        runs.map(|run| run.start).fold(self.left, usize::max) + SLACK
    }

    /// The bytes without which no pass is tried.
    pub(super) fn begins(&self) -> usize {
        self.left + 2 * self.largest() + AT_FIRST + self.least_states()
    }

    /// Bytes of the smallest states.
    pub(super) fn least_states(&self) -> usize {
        let sums = self.states.iter().map(|(_, states)| states.sum());
        sums.min().unwrap_or(0)
    }

    pub(super) fn states_in(&self, formats: Formats) -> Option<&States> {
        let mut states = self.states.iter();
        states
            .find(|(known, _)| *known == formats)
            .map(|(_, states)| states)
    }

    /// Bytes of the largest gradient.
    pub(super) fn largest(&self) -> usize {
        let trained = self.parameters.iter().filter(|it| it.trained);
        trained.map(Parameter::bytes).max().unwrap_or(0)
    }

    /// Bytes of the gradients of all parameters in training.
    pub(super) fn gradients(&self) -> usize {
        let trained = self.parameters.iter().filter(|it| it.trained);
        trained.map(Parameter::bytes).sum()
    }

    /// What is held beside a pass with states in `formats`, if so many micro-batches make a step, and what `offload`
    /// says waits on the host.
    pub(super) fn beside(
        &self,
        formats: Formats,
        accumulation: usize,
        config: &FusedConfig,
        offload: Option<&OffloadConfig>,
    ) -> Option<Beside> {
        let states = self.states_in(formats)?;
        let sums = |parameter: &Parameter| match config.full_precision_accumulation {
            _ if accumulation == 1 || !parameter.trained => 0,
            true => parameter.elements() * parameter.dtype.size().max(4),
            false => parameter.bytes(),
        };
        let mut beside = Beside {
            device: 0,
            host: 0,
            seconds: states.seconds,
        };
        let mut on_the_way = states.update;
        let state_waits = |it: &OffloadConfig, elements| {
            it.states_wait_from().is_some_and(|from| elements >= from)
        };
        for (parameter, state) in self.parameters.iter().zip(&states.bytes) {
            let (elements, bytes) = (parameter.elements(), parameter.bytes());
            // In f32, if it is not less.
            let average = match config.averaging {
                Some(_) if parameter.trained => 4 * elements,
                _ => 0,
            };
            let state = state + average;
            match offload {
                None => beside.device += state + sums(parameter),
                Some(offload) => {
                    beside.host += sums(parameter);
                    if offload.rests_on_host(elements) && parameter.trained {
                        beside.host += bytes + state;
                        // One gradient leaves while the next comes into being, and the new weight comes back.
                        on_the_way = on_the_way.max(2 * bytes);
                    } else if state_waits(offload, elements) {
                        beside.host += state;
                        on_the_way = on_the_way.max(bytes + state);
                    } else {
                        beside.device += state;
                    }
                }
            }
        }
        beside.device += on_the_way;
        Some(beside)
    }
}
