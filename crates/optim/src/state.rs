use std::marker::PhantomData;

use burn::optim::{LearningRate, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::call;
use super::element_wise::{ElementState, ElementWise};
use super::format::{
    CodeScheme, PackedState, RecordedFormat, Residual, StateTensor, loaded, steps,
};
use super::rule::Step;
use crate::optimizer_record::load_device;

/// State of an element-wise optimizer `R`. Its record has the names that `R` declares, and the residual of the weight if there
/// is one.
#[derive(Clone, Debug)]
pub struct ElementWiseState<R, const D: usize> {
    /// Number of steps. If `R` does not count steps, those with states or weight in a format.
    pub(super) time: usize,
    /// One entry for each state of the optimizer.
    pub(super) states: Vec<Option<StateTensor<D>>>,
    /// Residual of the weight in bf16.
    pub(super) residual: Option<Residual>,
    /// Step of the open group of micro-batches. Records do not store it.
    pub(super) open_group: Option<Step>,
    pub(super) optimizer: PhantomData<fn() -> R>,
}

impl<R: ElementWise, const D: usize> ElementWiseState<R, D> {
    /// Returns the state of this name in full precision; `None` if it does not exist yet.
    pub fn get(&self, name: &str) -> Option<Tensor<D>> {
        let place = R::STATES.iter().position(|state| state.name == name)?;
        self.states[place].clone().map(StateTensor::full)
    }

    /// Returns the state of a parameter before the first step.
    pub(super) fn none() -> Self {
        const {
            assert!(
                is_maximum_last(R::STATES),
                "the maximum must be the last state"
            )
        };
        Self {
            time: 0,
            states: vec![None; R::STATES.len()],
            residual: None,
            open_group: None,
            optimizer: PhantomData,
        }
    }

    /// Returns the next step, with the learning rate if it is the last micro-batch of a group, which counts as one step.
    pub(super) fn begin_step(&mut self, learning_rate: LearningRate) -> Step {
        let mut step = match self.open_group {
            Some(open_group) => Step {
                adds: true,
                ..open_group
            },
            None => Step {
                learning_rate: 0.0,
                time: self.time as i32 + 1,
                is_first: self.states.iter().all(Option::is_none),
                adds: false,
            },
        };
        self.open_group = match call::with(|call| call.more_micro_batches_follow) {
            Some(true) => Some(step),
            _ => {
                step.learning_rate = learning_rate;
                None
            }
        };
        step
    }
}

/// Returns `true` if only the last state can be a maximum: kernels take quantized states before those in full precision.
const fn is_maximum_last(states: &[ElementState]) -> bool {
    match states {
        [] | [_] => true,
        [first, rest @ ..] => first.root.is_some() && is_maximum_last(rest),
    }
}

impl<R: ElementWise, const D: usize> RecordState for ElementWiseState<R, D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let uncounted = match R::TIME {
            Some(name) => {
                sink.push_scalar(prefix, name, self.time.into());
                0
            }
            None => self.time,
        };
        for (declared, state) in R::STATES.iter().zip(&self.states) {
            if let Some(state) = state {
                state.flatten(prefix, declared.name, sink);
            }
        }
        let mut states = self.states.iter().flatten();
        let format = RecordedFormat {
            width: states.find_map(|state| match state {
                StateTensor::Packed(packed) => Some(packed.scheme.width),
                StateTensor::Full(_) => None,
            }),
            time: uncounted,
            residual: self.residual.clone(),
            ..RecordedFormat::default()
        };
        format.flatten(prefix, D, sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let device = &load_device(device);
        let format = RecordedFormat::unflatten(prefix, source, device)?;
        let time = match R::TIME {
            Some(name) => steps(source.take_scalar(prefix, name)?)?,
            None => format.time,
        };
        let mut states = Vec::with_capacity(R::STATES.len());
        let mut has_maximum = false;
        for declared in R::STATES.iter().rev() {
            let scheme = declared.root.zip(format.width);
            let scheme = scheme.map(|(root, width)| CodeScheme { root, width });
            let state = match (source.take_tensor(prefix, declared.name), scheme) {
                (Some(data), scheme) => {
                    let full = StateTensor::Full(loaded(data, device)?);
                    // A state with a maximum stays in full precision.
                    Some(full.conformed(scheme.filter(|_| !has_maximum)))
                }
                (None, Some(scheme)) => {
                    let prefix = format!("{prefix}.{}", declared.name);
                    let packed = PackedState::unflatten(&prefix, scheme, source, device);
                    packed.map(StateTensor::Packed)
                }
                (None, None) => None,
            };
            if state.is_none() && !declared.is_optional {
                return None;
            }
            has_maximum = declared.root.is_none() && state.is_some();
            states.push(state);
        }
        states.reverse();
        Some(Self {
            time,
            states,
            residual: format.residual,
            ..Self::none()
        })
    }
}
