use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use super::process;

/// Peak memory in Burn's training display and metric logs, in MB: per step, and the largest of an
/// epoch.
///
/// Burn computes metrics concurrently, so a step's peak can appear with the next step. That of the first step of an
/// epoch includes the validation and the checkpoint before it. The
/// program must run on the [`RecordingAllocator`](super::RecordingAllocator); on another allocator
/// the metric shows `unknown`. The pools of a device are not part of it.
///
/// ```ignore
/// let training = SupervisedTraining::new(folder, train, valid)
///     .metric_train_numeric(PeakMemoryMetric::new());
/// ```
#[derive(Clone, Debug)]
pub struct PeakMemoryMetric {
    name: MetricName,
    step: f64,
    epoch: f64,
}

impl PeakMemoryMetric {
    /// Creates the metric for the memory of the process. It counts from this call.
    pub fn new() -> Self {
        process::take_peak();
        Self {
            name: Arc::new("Peak Memory".to_string()),
            step: 0.0,
            epoch: 0.0,
        }
    }

    fn entry(&self, value: f64) -> SerializedEntry {
        let formatted = match value > 0.0 {
            true => format!("{value:.1} MB"),
            false => "unknown".to_string(),
        };
        SerializedEntry::new(formatted, NumericEntry::Value(value).serialize())
    }
}

impl Default for PeakMemoryMetric {
    fn default() -> Self {
        Self::new()
    }
}

impl Metric for PeakMemoryMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn update(
        &mut self,
        _input: &(),
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.step = process::take_peak() as f64 / 1e6;
        self.epoch = self.epoch.max(self.step);
        Ok(self.entry(self.step))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry(self.epoch))
    }

    fn clear(&mut self) {
        self.epoch = 0.0;
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("MB".to_string()),
            higher_is_better: false,
        }
        .into()
    }
}

impl Numeric for PeakMemoryMetric {
    fn value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(self.step))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(self.epoch))
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Value(self.epoch)
    }
}
