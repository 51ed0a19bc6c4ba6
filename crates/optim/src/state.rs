use std::marker::PhantomData;

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::element_wise::{ElementState, ElementWise};
use super::format::{Coding, LowBits, PackedState, RecordedFormat, StateTensor, loaded, steps};
use super::rule::Step;
use crate::optimizer_record::load_device;

/// State of an element-wise optimizer `R`. Its record has the names that `R` gives, with the low bits of the weight
/// beside them if there are any.
#[derive(Clone, Debug)]
pub struct RuledState<R, const D: usize> {
    /// The number of steps; where `R` does not count them, of those in which states or weight were kept in a format.
    pub(super) time: usize,
    /// One for each of the optimizer's.
    pub(super) states: Vec<Option<StateTensor<D>>>,
    /// What the weight in bf16 lacks.
    pub(super) low_bits: Option<LowBits>,
    /// The step whose group of micro-batches has begun, which records do not hold.
    pub(super) begun: Option<Step>,
    pub(super) optimizer: PhantomData<fn() -> R>,
}

impl<R: ElementWise, const D: usize> RuledState<R, D> {
    /// The state of this name, in full; none if there is none yet.
    pub fn get(&self, name: &str) -> Option<Tensor<D>> {
        let place = R::STATES.iter().position(|state| state.name == name)?;
        self.states[place].clone().map(StateTensor::full)
    }

    /// That of a parameter before the first step.
    pub(super) fn none() -> Self {
        const {
            assert!(
                is_maximum_last(R::STATES),
                "a maximum is the last of the states"
            )
        };
        Self {
            time: 0,
            states: vec![None; R::STATES.len()],
            low_bits: None,
            begun: None,
            optimizer: PhantomData,
        }
    }
}

/// Kernels take states in few bits before those that are always full.
const fn is_maximum_last(states: &[ElementState]) -> bool {
    match states {
        [] | [_] => true,
        [first, rest @ ..] => first.root.is_some() && is_maximum_last(rest),
    }
}

impl<R: ElementWise, const D: usize> RecordState for RuledState<R, D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let uncounted = match R::TIME {
            Some(name) => {
                sink.push_scalar(prefix, name, self.time.into());
                0
            }
            None => self.time,
        };
        for (kept, state) in R::STATES.iter().zip(&self.states) {
            if let Some(state) = state {
                state.flatten(prefix, kept.name, sink);
            }
        }
        let mut states = self.states.iter().flatten();
        let format = RecordedFormat {
            width: states.find_map(|state| match state {
                StateTensor::Packed(packed) => Some(packed.coding.width),
                StateTensor::Full(_) => None,
            }),
            time: uncounted,
            low_bits: self.low_bits.clone(),
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
        for kept in R::STATES.iter().rev() {
            let coding = kept.root.zip(format.width);
            let coding = coding.map(|(root, width)| Coding { root, width });
            let state = match (source.take_tensor(prefix, kept.name), coding) {
                (Some(data), coding) => {
                    let full = StateTensor::Full(loaded(data, device)?);
                    // One that is in full beside its largest is kept so.
                    Some(full.conformed(coding.filter(|_| !has_maximum)))
                }
                (None, Some(coding)) => {
                    let prefix = format!("{prefix}.{}", kept.name);
                    let packed = PackedState::unflatten(&prefix, coding, source, device);
                    packed.map(StateTensor::Packed)
                }
                (None, None) => None,
            };
            if state.is_none() && !kept.is_optional {
                return None;
            }
            has_maximum = kept.root.is_none() && state.is_some();
            states.push(state);
        }
        states.reverse();
        Some(Self {
            time,
            states,
            low_bits: format.low_bits,
            ..Self::none()
        })
    }
}
