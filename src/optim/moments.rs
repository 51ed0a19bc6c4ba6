use burn::optim::{AdaptiveMomentumState, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Shape, Tensor};

use super::format::{
    Formats, LowBits, Noise, RecordedFormat, Root, StateTensor, Weight, loaded, steps,
};
use super::kernel::{self, update_in_format};
use super::rule::Rule;
use crate::device::sent;

/// State of [`Adam`](super::Adam) and [`AdamW`](super::AdamW); its record is that of Burn's
/// [`AdamState`](burn::optim::AdamState), with the low bits of the weight beside it if there are any.
#[derive(Clone, Debug)]
pub struct MomentsState<const D: usize> {
    /// The number of steps.
    pub time: usize,
    /// The moving average of the gradient.
    pub moment_1: StateTensor<D>,
    /// The moving average of its square, which is full where its largest is kept.
    pub moment_2: StateTensor<D>,
    /// The largest second moment (AMSGrad), which is always full.
    ///
    /// So is the second moment then: in few bits it is right on average, and the largest of numbers around the right
    /// one is too large. After 20,000 steps of normal gradients, `beta_2` being 0.999, it would be 1.4 times that of f32 in 8
    /// bits and 3.1 times in 4, for elements of a tenth of their group's largest gradient.
    pub max_moment_2: Option<Tensor<D>>,
    /// What the weight in bf16 lacks.
    pub low_bits: Option<LowBits>,
}

impl<const D: usize> MomentsState<D> {
    /// The shapes of all that belongs to single elements.
    pub(super) fn shapes(&self) -> impl Iterator<Item = Shape> {
        let moments = [&self.moment_1, &self.moment_2].map(StateTensor::shape);
        let max = self.max_moment_2.as_ref().map(Tensor::shape);
        moments.into_iter().chain(max)
    }

    /// Burn's own state, in full.
    pub(super) fn into_full(self) -> AdaptiveMomentumState<D> {
        AdaptiveMomentumState {
            time: self.time,
            moment_1: self.moment_1.full(),
            moment_2: self.moment_2.full(),
            max_moment_2: self.max_moment_2,
        }
    }

    pub(super) fn on_device(self, device: &Device) -> Self {
        Self {
            time: self.time,
            moment_1: self.moment_1.on_device(device),
            moment_2: self.moment_2.on_device(device),
            max_moment_2: self.max_moment_2.map(|max| sent(max, device)),
            low_bits: self.low_bits.map(|low| low.on_device(device)),
        }
    }
}

impl<const D: usize> From<AdaptiveMomentumState<D>> for MomentsState<D> {
    fn from(state: AdaptiveMomentumState<D>) -> Self {
        Self {
            time: state.time,
            moment_1: StateTensor::Full(state.moment_1),
            moment_2: StateTensor::Full(state.moment_2),
            max_moment_2: state.max_moment_2,
            low_bits: None,
        }
    }
}

/// Under the names of Burn's own.
impl<const D: usize> RecordState for MomentsState<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let moments = format!("{prefix}.momentum");
        sink.push_scalar(&moments, "time", self.time.into());
        self.moment_1.flatten(&moments, "moment_1", sink);
        self.moment_2.flatten(&moments, "moment_2", sink);
        if let Some(max) = &self.max_moment_2 {
            sink.push_tensor(&moments, "max_moment_2", max.to_data());
        }
        RecordedFormat::of([&self.moment_1, &self.moment_2], 0).flatten(prefix, sink);
        if let Some(low) = &self.low_bits {
            low.flatten::<D>(prefix, sink);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let format = RecordedFormat::unflatten(prefix, source)?;
        let low_bits = LowBits::unflatten(prefix, source, device).ok()?;
        let moments = format!("{prefix}.momentum");
        let time = steps(source.take_scalar(&moments, "time")?)?;
        let max = match source.take_tensor(&moments, "max_moment_2") {
            Some(max) => Some(loaded(max, device)?),
            None => None,
        };
        // One that is in full beside its largest is kept so.
        let whole = match &max {
            Some(_) => StateTensor::unflatten_full(&moments, "moment_2", source, device),
            None => None,
        };
        let mut moment =
            |leaf, root| StateTensor::unflatten(&moments, leaf, root, &format, source, device);
        let state = Self {
            time,
            moment_1: moment("moment_1", Root::Signed)?,
            moment_2: whole.or_else(|| moment("moment_2", Root::Positive))?,
            max_moment_2: max,
            low_bits,
        };
        let shape = state.moment_1.shape();
        let fit = state.shapes().all(|other| other == shape);
        fit.then_some(state)
    }
}

/// Updates a parameter and the moments of its gradient, with their maximum if `amsgrad`.
pub(super) fn update_moments<const D: usize>(
    rule: Rule,
    amsgrad: bool,
    formats: Formats,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<MomentsState<D>>,
) -> (Tensor<D>, MomentsState<D>) {
    match formats.are_plain_for(&parameter) {
        true => {
            let state = state.map(MomentsState::into_full);
            let (parameter, state) = update_full(rule, amsgrad, parameter, gradient, state);
            (parameter, state.into())
        }
        false => update_formatted(rule, amsgrad, formats, parameter, gradient, state),
    }
}

fn update_full<const D: usize>(
    rule: Rule,
    amsgrad: bool,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<AdaptiveMomentumState<D>>,
) -> (Tensor<D>, AdaptiveMomentumState<D>) {
    let mut state = state.unwrap_or_else(|| AdaptiveMomentumState {
        time: 0,
        moment_1: kernel::blank(&parameter),
        moment_2: kernel::blank(&parameter),
        max_moment_2: None,
    });
    state.time += 1;
    let AdaptiveMomentumState {
        time,
        moment_1,
        moment_2,
        max_moment_2,
    } = state;

    if amsgrad {
        // Without one yet, the maximum is the second moment of this step.
        let max = max_moment_2.unwrap_or_else(|| parameter.full_like(f32::NEG_INFINITY));
        let (parameter, [moment_1, moment_2, max]) =
            kernel::update(rule, parameter, gradient, [moment_1, moment_2, max]);
        let state = AdaptiveMomentumState {
            time,
            moment_1,
            moment_2,
            max_moment_2: Some(max),
        };
        return (parameter, state);
    }
    let (parameter, [moment_1, moment_2]) =
        kernel::update(rule, parameter, gradient, [moment_1, moment_2]);
    let state = AdaptiveMomentumState {
        time,
        moment_1,
        moment_2,
        // Burn keeps what a record brought along.
        max_moment_2,
    };
    (parameter, state)
}

fn update_formatted<const D: usize>(
    rule: Rule,
    amsgrad: bool,
    formats: Formats,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<MomentsState<D>>,
) -> (Tensor<D>, MomentsState<D>) {
    let (time, moments, max, low_bits) = match state {
        None => (0, [None, None], None, None),
        Some(state) => {
            let moments = [Some(state.moment_1), Some(state.moment_2)];
            (state.time, moments, state.max_moment_2, state.low_bits)
        }
    };
    let time = time + 1;
    let noise = Noise::of_step(time);
    let [moment_1, moment_2] = moments;
    let moment_1 = formats.state(moment_1, Root::Signed, &parameter);
    let of_second = if amsgrad {
        formats.with_full_states()
    } else {
        formats
    };
    let moment_2 = of_second.state(moment_2, Root::Positive, &parameter);
    let weight = formats.weight(parameter, low_bits);
    let (weight, moments, max_moment_2) = match amsgrad {
        false => {
            let states = [moment_1, moment_2];
            let (weight, moments) = update_in_format(rule, weight, gradient, states, noise);
            (weight, moments, max)
        }
        true => {
            let max = max.unwrap_or_else(|| weight.blank_state(f32::NEG_INFINITY));
            let states = [moment_1, moment_2, StateTensor::Full(max).in_f32()];
            let (weight, [moment_1, moment_2, max]) =
                update_in_format(rule, weight, gradient, states, noise);
            (weight, [moment_1, moment_2], Some(max.full()))
        }
    };
    let [moment_1, moment_2] = moments;
    let Weight {
        value, low_bits, ..
    } = weight;
    let state = MomentsState {
        time,
        moment_1,
        moment_2,
        max_moment_2,
        low_bits,
    };
    (value, state)
}
