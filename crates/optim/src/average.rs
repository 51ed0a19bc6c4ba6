use std::sync::Arc;

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, Tensor};
use parking_lot::Mutex;

use super::averaging::WeightAveragingConfig;
use super::format::{Weight, steps};
use super::kernel;
use super::optimizer_record::{in_own_memory, push_tensor};
use super::rule::Rule;
use backburn_base::{copy_to_device, host, in_type, is_cpu_backend, of_data};

/// The average of a parameter over its updates.
#[derive(Debug)]
pub struct Average {
    config: WeightAveragingConfig,
    state: AverageState,
}

/// The part of an average that records contain. Clones share it, so that a record contains its current value.
#[derive(Clone, Debug, Default)]
pub struct AverageState(Arc<Mutex<Values>>);

#[derive(Clone, Debug, Default)]
struct Values {
    /// Number of updates of the parameter.
    updates: usize,
    /// Number of updates that were counted.
    count: usize,
    /// Mean in f32, or in f64 for a parameter in f64. It has the dimensions of the parameter; their number in its type is
    /// arbitrary. `None` before the average is started, and after an update that panicked.
    mean: Option<Tensor<1>>,
}

impl Average {
    /// Creates an average with `config` that continues from `before`.
    pub fn new(config: WeightAveragingConfig, before: Option<Self>) -> Self {
        Self {
            config,
            state: before.map(|before| before.state).unwrap_or_default(),
        }
    }

    /// Returns the part that records contain.
    pub fn state(&self) -> &AverageState {
        &self.state
    }

    /// Starts the average as `value`, or moves a loaded average to its device and type.
    pub fn start(&self, value: &Tensor<1>) {
        let mut values = self.state.0.lock();
        let loaded = values.mean.clone();
        let loaded = loaded.filter(|mean| mean.shape() == value.shape());
        values.mean = Some(match loaded {
            // Not every device supports the recorded type.
            Some(mean) => copy_to_device(in_type(mean, type_of_average(value)), &value.device()),
            None => copied(value),
        });
    }

    /// Applies an update of the parameter. `value` is the parameter after the update, without autodiff.
    pub fn update(&self, value: &Tensor<1>) {
        let mut values = self.state.0.lock();
        if !self.config.counts(values.updates + 1) {
            values.updates += 1;
            return;
        }
        let Values {
            updates,
            count,
            mean,
        } = std::mem::take(&mut *values);
        // If the update panics, the average starts again.
        values.updates = updates + 1;
        // The first weight of a uniform average replaces the one at construction.
        let mean = mean.filter(|_| self.config.decay.is_some() || count > 0);
        let count = count + 1;
        let mean = match mean {
            Some(mean) => self.next(count, mean, value),
            None => copied(value),
        };
        *values = Values {
            updates: updates + 1,
            count,
            mean: Some(mean),
        };
    }

    /// Applies the counted update of this number to `mean`, in place.
    fn next(&self, count: usize, mean: Tensor<1>, value: &Tensor<1>) -> Tensor<1> {
        let value = match (mean.dtype(), value.dtype()) {
            // The update reads half types as they are. A copy would take twice the size of the parameter.
            (DType::F32, DType::BF16 | DType::F16) if is_cpu_backend(&value.device()) => {
                value.clone()
            }
            (dtype, _) => in_type(value.clone(), dtype),
        };
        let rule = Rule::built_in::<0>(self.config.rule(count));
        let (mean, _) = kernel::update(rule, Weight::plain(mean), value, Vec::new(), count);
        mean.value
    }

    /// Returns the average in this type, if it was started.
    pub fn mean(&self, dtype: DType) -> Option<Tensor<1>> {
        let mean = self.state.0.lock().mean.clone();
        mean.map(|mean| in_type(mean, dtype))
    }
}

impl AverageState {
    /// Replaces the values by those of `other`.
    pub fn load(&self, other: &Self) {
        if !Arc::ptr_eq(&self.0, &other.0) {
            let values = other.0.lock().clone();
            *self.0.lock() = values;
        }
    }
}

/// Returns the type of the average of `value`.
fn type_of_average(value: &Tensor<1>) -> DType {
    match value.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Copies `value` in the type of its average. A shared buffer would be copied in the next step.
fn copied(value: &Tensor<1>) -> Tensor<1> {
    in_type(value.clone(), type_of_average(value)).mul_scalar(1.0)
}

impl RecordState for AverageState {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let values = self.0.lock();
        sink.push_scalar(prefix, "updates", values.updates.into());
        sink.push_scalar(prefix, "count", values.count.into());
        if let Some(mean) = &values.mean {
            let mean = mean.clone();
            let kind = (mean.dtype(), mean.shape());
            push_tensor(sink, (prefix, "average"), kind, move || mean.to_data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let updates = steps(source.take_scalar(prefix, "updates")?)?;
        let count = steps(source.take_scalar(prefix, "count")?)?;
        let mean = match source.take_tensor(prefix, "average") {
            Some(data) if !data.dtype().is_float() => return None,
            // The recorded type, which not every device supports.
            mean => mean.map(|data| of_data(in_own_memory(data), &host(device))),
        };
        Some(Self(Arc::new(Mutex::new(Values {
            updates,
            count,
            mean,
        }))))
    }
}
