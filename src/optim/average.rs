use std::sync::Arc;

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use parking_lot::{Mutex, MutexGuard};

use super::averaging::WeightAveragingConfig;
use super::call::{Call, Mean};
use super::format::{
    LowBits, MIN_ELEMENTS, Noise, RecordedFormat, Weight, WeightFormat, check_forms, steps,
};
use super::kernel::{self, in_full, set_in_format};
use super::rule::Rule;
use crate::device::{host, in_type, moved, of_data};
use crate::parameters::AnyTensor;

/// The average of a parameter over its updates.
#[derive(Clone, Debug)]
pub(crate) struct Average {
    config: Arc<WeightAveragingConfig>,
    state: AverageState,
}

/// What records hold of an average. All handles share it, so that a record shows it as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct AverageState(Arc<Mutex<Values>>);

/// What there is of an average. Its mean is of the rank of the parameter, whatever its type says.
#[derive(Clone, Debug, Default)]
struct Values {
    /// Of the parameter.
    updates: usize,
    /// The values that the mean is of.
    count: usize,
    /// None before the first.
    mean: Option<Weight<1>>,
}

/// An average that a step under way may take on in its own pass over memory.
pub(crate) struct Lent<'a>(MutexGuard<'a, Values>);

impl Average {
    /// One that begins, or goes on as `config` says from now on.
    pub(crate) fn new(config: &Arc<WeightAveragingConfig>, before: Option<Self>) -> Self {
        Self {
            config: config.clone(),
            state: before.map(|before| before.state).unwrap_or_default(),
        }
    }

    /// The same, which goes on by itself from here.
    pub(crate) fn split(&self) -> Self {
        let split = Self::new(&self.config, None);
        split.state.load(&self.state);
        split
    }

    pub(crate) fn state(&self) -> &AverageState {
        &self.state
    }

    /// Lets the step of a call take the average on, if the value after it counts and the average is in full.
    pub(crate) fn lend(&self, call: &mut Call) -> Option<Lent<'_>> {
        let mut values = self.state.0.lock();
        let counts = self.config.counts(values.updates + 1);
        let is_full = |mean: &Weight<1>| {
            mean.format == WeightFormat::Plain && mean.is_as(&self.config, full_of(&mean.value))
        };
        let mean = values.mean.take_if(|mean| counts && is_full(mean))?;
        let rule = self.config.rule(values.count);
        call.mean = Some(Mean::Lent(mean.value.into(), rule));
        Some(Lent(values))
    }

    /// Takes note of the value after an update, which has no autodiff.
    pub(crate) fn update(&self, value: &AnyTensor) {
        let config = &self.config;
        let mut values = self.state.0.lock();
        values.updates += 1;
        if !config.counts(values.updates) {
            return;
        }
        // An update that panics takes the mean along: it begins anew then.
        let (mean, count) = match values.mean.take() {
            Some(mean) => {
                let mean = mean.on(value).kept_as(config, full_of(value));
                let next = mean.next(config, values.count, value.clone().untyped());
                (next, values.count + 1)
            }
            None => (begun(config, value), 1),
        };
        (values.mean, values.count) = (Some(mean), count);
    }

    /// The average in this type, if there is one yet.
    pub(crate) fn mean(&self, dtype: DType) -> Option<AnyTensor> {
        let values = self.state.0.lock();
        let mean = values.mean.as_ref()?;
        Some(in_type(mean.full(), dtype).into())
    }
}

impl Lent<'_> {
    /// The step is over. Returns whether it has taken the average on, which is lost if it panicked meanwhile.
    pub(crate) fn back(mut self, call: &mut Call) -> bool {
        let (mean, is_done) = match call.mean.take() {
            Some(Mean::Lent(mean, _)) => (mean, false),
            Some(Mean::TakenOn(mean)) => (mean, true),
            None => return false,
        };
        self.0.mean = Some(Weight::plain(mean.untyped()));
        self.0.updates += usize::from(is_done);
        self.0.count += usize::from(is_done);
        is_done
    }
}

impl AverageState {
    /// Goes on from where another is.
    pub(crate) fn load(&self, other: &Self) {
        if !Arc::ptr_eq(&self.0, &other.0) {
            let values = other.0.lock().clone();
            *self.0.lock() = values;
        }
    }
}

/// The average of one value.
fn begun(config: &WeightAveragingConfig, value: &Tensor<1>) -> Weight<1> {
    // A buffer of its own.
    let value = in_type(value.clone(), full_of(value)).mul_scalar(1.0);
    let format = format_of(config, &value);
    if format == WeightFormat::Plain {
        return Weight::plain(value);
    }
    let high = value.clone().cast(FloatDType::BF16);
    let weight = Weight {
        low_bits: LowBits::none(format, &high),
        value: high,
        format,
    };
    set_in_format(weight, value, Noise::of_step(0))
}

/// The type in which averages of such values are computed.
fn full_of(value: &Tensor<1>) -> DType {
    match value.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// How the average of `value`, which is in full, is kept.
fn format_of(config: &WeightAveragingConfig, value: &Tensor<1>) -> WeightFormat {
    let is_small = value.shape().num_elements() < MIN_ELEMENTS;
    match value.dtype() {
        DType::F32 if !is_small => config.format,
        _ => WeightFormat::Plain,
    }
}

impl Weight<1> {
    /// In f32, or f64.
    fn full(&self) -> Tensor<1> {
        match self.value.dtype() {
            DType::BF16 => in_full(self),
            _ => self.value.clone(),
        }
    }

    /// Whether it is kept as `config` says, of values in `full`.
    fn is_as(&self, config: &WeightAveragingConfig, full: DType) -> bool {
        match self.value.dtype() {
            DType::BF16 => self.format == config.format && full == DType::F32,
            dtype => dtype == full && format_of(config, &self.value) == WeightFormat::Plain,
        }
    }

    /// The same, kept as `config` says: another may have begun it, or the parameter been in another type.
    fn kept_as(self, config: &WeightAveragingConfig, full: DType) -> Self {
        match self.is_as(config, full) {
            true => self,
            false => begun(config, &in_type(self.full(), full)),
        }
    }

    /// The same where `value` is: it may have been loaded elsewhere.
    fn on(self, value: &Tensor<1>) -> Self {
        let device = value.device();
        Self {
            value: moved(self.value, &device),
            low_bits: self.low_bits.map(|low| low.on_device(&device)),
            ..self
        }
    }

    /// The average of so many values taken on to the next.
    fn next(self, config: &WeightAveragingConfig, count: usize, value: Tensor<1>) -> Self {
        let rule = Rule::new::<0>(config.rule(count));
        let full = full_of(&self.value);
        let value = in_type(value, full);
        let form = |tensor: &Tensor<1>| (tensor.shape(), full, tensor.device());
        check_forms(form(&self.value), form(&value), std::iter::empty())
            .unwrap_or_else(|error| panic!("{error}"));
        kernel::update(rule, self, value, Vec::new(), count, false).0
    }
}

impl RecordState for AverageState {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let values = self.0.lock();
        sink.push_scalar(prefix, "updates", values.updates.into());
        sink.push_scalar(prefix, "count", values.count.into());
        if let Some(mean) = &values.mean {
            sink.push_tensor(prefix, "average", mean.value.clone().into_data());
            let format = RecordedFormat {
                low_bits: mean.low_bits.clone(),
                ..RecordedFormat::default()
            };
            format.flatten(prefix, mean.value.shape().num_dims(), sink);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let updates = steps(source.take_scalar(prefix, "updates")?)?;
        let count = steps(source.take_scalar(prefix, "count")?)?;
        let mean = match source.take_tensor(prefix, "average") {
            None => None,
            Some(data) => {
                // In its type, which not every device has.
                let device = &host(device);
                let dtype = data.dtype();
                if !dtype.is_float() {
                    return None;
                }
                let value = of_data(data, device);
                let low_bits = RecordedFormat::unflatten(prefix, source, device)?.low_bits;
                let elements = value.shape().num_elements();
                let is_of = |low: &LowBits| dtype == DType::BF16 && low.elements == elements;
                if !low_bits.as_ref().is_none_or(is_of) {
                    return None;
                }
                let format = match &low_bits {
                    Some(low) => low.format,
                    None if dtype == DType::BF16 => WeightFormat::Stochastic,
                    None => WeightFormat::Plain,
                };
                Some(Weight {
                    value,
                    format,
                    low_bits,
                })
            }
        };
        Some(Self(Arc::new(Mutex::new(Values {
            updates,
            count,
            mean,
        }))))
    }
}
