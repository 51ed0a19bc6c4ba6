use std::sync::Arc;

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use parking_lot::Mutex;

use super::averaging::WeightAveragingConfig;
use super::format::{Formats, LowBits, Noise, StateFormat, Weight, WeightFormat, steps};
use super::kernel::{self, in_full, set_in_format};
use crate::device::{host, in_type, moved};

/// The average of a parameter. All handles share it, so that a record shows it as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Averaged<const D: usize>(Arc<Mutex<Values<D>>>);

/// What there is of it.
#[derive(Clone, Debug, Default)]
struct Values<const D: usize> {
    /// Of the parameter.
    updates: usize,
    /// The values that have counted.
    count: usize,
    /// None before the first.
    mean: Option<Weight<D>>,
}

impl<const D: usize> Averaged<D> {
    /// Takes note of the value after an update, which has no autodiff.
    pub(crate) fn update(&self, config: &WeightAveragingConfig, value: &Tensor<D>) {
        let mut values = self.0.lock();
        values.updates += 1;
        if !config.counts(values.updates) {
            return;
        }
        // An update that panics takes the mean along: it begins anew then.
        let count = std::mem::take(&mut values.count);
        let mean = match values.mean.take() {
            Some(mean) => mean.on(value).next(config, count, value.clone()),
            None => begun(config, value),
        };
        values.mean = Some(mean);
        values.count = count + 1;
    }

    /// The average in this type, if there is one yet.
    pub(crate) fn mean(&self, dtype: DType) -> Option<Tensor<D>> {
        let values = self.0.lock();
        values.mean.as_ref().map(|mean| match mean.value.dtype() {
            DType::BF16 => in_type(in_full(mean), dtype),
            _ => in_type(mean.value.clone(), dtype),
        })
    }

    /// Goes on from where another is.
    pub(crate) fn load(&self, other: &Self) {
        if !Arc::ptr_eq(&self.0, &other.0) {
            let values = other.0.lock().clone();
            *self.0.lock() = values;
        }
    }
}

/// The average of one value.
fn begun<const D: usize>(config: &WeightAveragingConfig, value: &Tensor<D>) -> Weight<D> {
    let full = match value.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    // A buffer of its own.
    let value = in_type(value.clone(), full).mul_scalar(1.0);
    let formats = Formats {
        state: StateFormat::Full,
        weight: config.format,
    };
    if full == DType::F64 || formats.weight_format(&value) == WeightFormat::Plain {
        return Weight {
            value,
            format: WeightFormat::Plain,
            low_bits: None,
        };
    }
    let weight = formats.weight(value.clone().cast(FloatDType::BF16), None);
    set_in_format(weight, value, Noise::of_step(0))
}

impl<const D: usize> Weight<D> {
    /// The same where `value` is: it may have been loaded elsewhere.
    fn on(self, value: &Tensor<D>) -> Self {
        let device = value.device();
        Self {
            value: moved(self.value, &device),
            low_bits: self.low_bits.map(|low| low.on_device(&device)),
            ..self
        }
    }

    /// The average of so many values taken on to the next.
    fn next(self, config: &WeightAveragingConfig, count: usize, value: Tensor<D>) -> Self {
        let rule = kernel::Rule::new::<0>(config.rule(count));
        let full = match self.value.dtype() {
            DType::BF16 => DType::F32,
            full => full,
        };
        let noise = Noise::of_step(count);
        kernel::step(rule, self, in_type(value, full), Vec::new(), noise).0
    }
}

impl<const D: usize> RecordState for Averaged<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let values = self.0.lock();
        sink.push_scalar(prefix, "updates", values.updates.into());
        sink.push_scalar(prefix, "count", values.count.into());
        if let Some(mean) = &values.mean {
            sink.push_tensor(prefix, "average", mean.value.clone().into_data());
            if let Some(low) = &mean.low_bits {
                low.flatten::<D>(prefix, sink);
            }
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
                if !dtype.is_float() || data.rank() != D {
                    return None;
                }
                let value = Tensor::from_data(data, (device, dtype));
                let low_bits = LowBits::unflatten(prefix, source, device).ok()?;
                let format = low_bits.as_ref().map(|low| low.format);
                let format = format.unwrap_or(match value.dtype() {
                    DType::BF16 => WeightFormat::Stochastic,
                    _ => WeightFormat::Plain,
                });
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
