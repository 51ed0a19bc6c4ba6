use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, FloatDType, Tensor};

use super::call;
use super::format::{Formats, LowBits, Noise, RecordedFormat, StateFormat, WeightFormat, around};
use super::kernel;

/// Any optimizer, around which weights in bf16 are kept in a [`WeightFormat`].
///
/// The optimizer gets the weight and its gradient in f32, and computes in that, states included. The new weight is
/// rounded at random or split, as the format says. For the time of an update there is the parameter in f32; the
/// optimizers of [this crate](super) do without.
///
/// ```
/// use backburn_optim::{InFormat, WeightFormat};
/// use burn::optim::{AdafactorConfig, ModuleOptimizer};
///
/// // Two bytes a parameter, and a row and a column of states.
/// let optimizer = InFormat::new(AdafactorConfig::new().build(), WeightFormat::Stochastic);
/// let optimizer = ModuleOptimizer::from(optimizer); // for a model in bf16
/// ```
///
/// # Errors
///
/// A parameter that is not in bf16 is refused before training starts by `backburn` (`FusedError::UnsupportedParameter`), one of
/// fewer than 4096 elements in its step; such a small one in f32 is stepped as it is. In a stock loop the step panics.
#[derive(Clone, Debug)]
pub struct InFormat<O> {
    optimizer: O,
    format: WeightFormat,
}

impl<O> InFormat<O> {
    /// `optimizer`, for weights in `format`.
    pub fn new(optimizer: O, format: WeightFormat) -> Self {
        Self { optimizer, format }
    }
}

/// State of [`InFormat`]: that of the optimizer, with the low bits of the weight beside it if there are any.
#[derive(Clone, Debug)]
pub struct InFormatState<S, const D: usize> {
    /// That of the optimizer, if it has one.
    state: Option<S>,
    /// The number of steps.
    time: usize,
    /// What the weight in bf16 lacks.
    low_bits: Option<LowBits>,
}

impl<O: Optimizer> Optimizer for InFormat<O> {
    type State<const D: usize> = InFormatState<O::State<D>, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let formats = Formats {
            state: StateFormat::Full,
            weight: self.format,
            is_around: true,
        };
        let low_bits = state.as_ref().and_then(|state| state.low_bits.as_ref());
        let fitted = formats.fit(&parameter, &gradient, &[], low_bits);
        let Ok(formats) = fitted.map_err(call::refuse) else {
            return (parameter, state);
        };
        let parts = |state: Self::State<D>| (state.state, state.time, state.low_bits);
        let (state, time, low_bits) = state.map_or((None, 0, None), parts);
        let time = time + 1;
        let with = |state, low_bits| {
            Some(InFormatState {
                state,
                time,
                low_bits,
            })
        };
        if formats.is_whole {
            let (value, state) = self.optimizer.step(lr, parameter, gradient, state);
            return (value, with(state, low_bits));
        }
        let weight = formats.weight(parameter, low_bits);
        let gradient = gradient.cast(FloatDType::F32);
        let before = kernel::in_full(&weight);
        // It is told nothing about the weight, and nothing of the caller's goes with it.
        let step = || self.optimizer.step(lr, before, gradient, state);
        let (after, state) = call::unheard(step);
        let weight = kernel::set_in_format(weight, after, Noise::of_step(time));
        (weight.value, with(state, weight.low_bits))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        InFormatState {
            state: state.state.map(|state| O::to_device(state, device)),
            time: state.time,
            low_bits: state.low_bits.map(|low| low.on_device(device)),
        }
    }
}

/// Under the names of the optimizer's own; what is around it has others, since that may be in formats, too.
impl<S: RecordState, const D: usize> RecordState for InFormatState<S, D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        if let Some(state) = &self.state {
            state.state_flatten(prefix, sink);
        }
        let around = around(prefix);
        let format = RecordedFormat {
            time: self.time,
            wraps: self.state.is_some(),
            low_bits: self.low_bits.clone(),
            ..RecordedFormat::default()
        };
        format.flatten(&around, D, sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let around = around(prefix);
        let format = RecordedFormat::unflatten(&around, source, device)?;
        let state = S::state_unflatten(prefix, source, device);
        // All or nothing.
        let is_whole = state.is_some() || !format.wraps;
        is_whole.then_some(Self {
            state,
            time: format.time,
            low_bits: format.low_bits,
        })
    }
}
