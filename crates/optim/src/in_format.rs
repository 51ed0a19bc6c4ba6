use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, FloatDType, Tensor};

use super::call;
use super::format::{Formats, RecordedFormat, Residual, StateFormat, WeightFormat, around};
use super::kernel;
use super::rule::{Number, Rule, UpdateRule};

/// A wrapper that stores the bf16 weights of any optimizer in a [`WeightFormat`].
///
/// The optimizer receives the weight and its gradient in f32, and computes in f32, including its states. The new weight
/// is rounded at random or split, according to the format. During an update the parameter and its gradient are
/// allocated in f32; if the parameter has a residual, the host reads it from the device. The optimizers of [this crate](super)
/// don't need these buffers.
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
/// # Parameters
///
/// `backburn` refuses a parameter that is not in bf16 before training starts (`FusedError::UnsupportedParameter`). In a stock
/// loop its step panics. A parameter in f32 of fewer than 4096 elements is stepped without a format.
#[derive(Clone, Debug)]
pub struct InFormat<O> {
    optimizer: O,
    format: WeightFormat,
}

impl<O> InFormat<O> {
    /// Wraps `optimizer`, for weights in `format`.
    pub fn new(optimizer: O, format: WeightFormat) -> Self {
        Self { optimizer, format }
    }
}

/// State of [`InFormat`]: the state of the optimizer, and the residual of the weight if there is one.
#[derive(Clone, Debug)]
pub struct InFormatState<S, const D: usize> {
    /// State of the optimizer, if it has one.
    state: Option<S>,
    /// Number of steps.
    time: usize,
    /// Residual of the weight in bf16.
    residual: Option<Residual>,
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
            is_wrapper: true,
        };
        let residual = state.as_ref().and_then(|state| state.residual.as_ref());
        let resolved = formats.resolve(&parameter, &gradient, &[], residual);
        let Ok(formats) = resolved.map_err(call::refuse) else {
            return (parameter, state);
        };
        let parts = |state: Self::State<D>| (state.state, state.time, state.residual);
        let (state, time, residual) = state.map_or((None, 0, None), parts);
        let time = time + 1;
        let with = |state, residual| {
            Some(InFormatState {
                state,
                time,
                residual,
            })
        };
        if formats.is_whole {
            let (value, state) = self.optimizer.step(lr, parameter, gradient, state);
            return (value, with(state, residual));
        }
        let weight = formats.weight(parameter, residual);
        let gradient = gradient.cast(FloatDType::F32);
        let before = kernel::in_full(&weight);
        // Without the caller, because the wrapped optimizer updates another tensor than that of the caller.
        let step = || self.optimizer.step(lr, before, gradient, state);
        let (after, state) = call::without_caller(step);
        if self.format == WeightFormat::Plain {
            // The kernel rounds in the same way, but would read a weight on a server.
            let value = after.cast(FloatDType::BF16);
            return (value, with(state, weight.residual));
        }
        let set = Rule::built_in::<0>(Set);
        let (weight, _) = kernel::update(set, weight, after, Vec::new(), time);
        (weight.value, with(state, weight.residual))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        InFormatState {
            state: state.state.map(|state| O::to_device(state, device)),
            time: state.time,
            residual: state.residual.map(|low| low.on_device(device)),
        }
    }
}

/// Records the state under the optimizer's own names. The wrapper uses other names, because the optimizer can also have
/// formats.
impl<S: RecordState, const D: usize> RecordState for InFormatState<S, D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        if let Some(state) = &self.state {
            state.state_flatten(prefix, sink);
        }
        let around = around(prefix);
        let format = RecordedFormat {
            time: self.time,
            wraps: self.state.is_some(),
            residual: self.residual.clone(),
            ..RecordedFormat::default()
        };
        format.flatten(&around, D, sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let around = around(prefix);
        let format = RecordedFormat::unflatten(&around, source, device)?;
        let state = S::state_unflatten(prefix, source, device);
        // A record without the wrapped state is incomplete.
        let is_whole = state.is_some() || !format.wraps;
        is_whole.then_some(Self {
            state,
            time: format.time,
            residual: format.residual,
        })
    }
}

/// A rule that sets the parameter to the value passed as the gradient.
#[derive(Clone, Debug)]
pub(crate) struct Set;

impl UpdateRule<0> for Set {
    #[inline(always)]
    fn update<N: Number>(&self, _parameter: N, number: N, []: [N; 0]) -> (N, [N; 0]) {
        (number, [])
    }
}
