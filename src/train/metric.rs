use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use parking_lot::Mutex;

use crate::StepReport;

/// The shared report of the last update, read by the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct LastStep(Arc<Mutex<StepReport>>);

impl LastStep {
    pub(super) fn set(&self, report: &StepReport) {
        *self.0.lock() = report.clone();
    }
}

/// A metric that displays a number of the last update's [`StepReport`] in Burn's training, and its mean over an epoch.
///
/// Created by a [`FusedLearner`](super::FusedLearner), for
/// `SupervisedTraining::metric_train_numeric`. Burn computes metrics concurrently with the training, so a number
/// can appear one step early. A number that was not reported is displayed as `none`.
#[derive(Clone, Debug)]
pub struct StepMetric {
    name: MetricName,
    last_step: LastStep,
    number: fn(&StepReport) -> Option<f64>,
    current: Option<f64>,
    sum: f64,
    count: usize,
}

impl StepMetric {
    pub(super) fn new(
        name: &str,
        last_step: &LastStep,
        number: fn(&StepReport) -> Option<f64>,
    ) -> Self {
        Self {
            name: Arc::new(name.to_string()),
            last_step: last_step.clone(),
            number,
            current: None,
            sum: 0.0,
            count: 0,
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

fn entry(value: Option<f64>) -> SerializedEntry {
    let formatted = value.map_or("none".to_string(), |value| format!("{value:.4e}"));
    SerializedEntry::new(formatted, numeric(value).serialize())
}

/// Converts a value to an entry. A missing value has no weight in the mean of an epoch.
fn numeric(value: Option<f64>) -> NumericEntry {
    NumericEntry::Aggregated {
        aggregated_value: value.unwrap_or_default(),
        count: value.is_some().into(),
    }
}

impl Metric for StepMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn update(
        &mut self,
        _input: &(),
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.current = (self.number)(&self.last_step.0.lock());
        if let Some(value) = self.current {
            self.sum += value;
            self.count += 1;
        }
        Ok(entry(self.current))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(entry(self.mean()))
    }

    fn clear(&mut self) {
        (self.sum, self.count) = (0.0, 0);
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: false,
        }
        .into()
    }
}

impl Numeric for StepMetric {
    fn value(&self) -> Option<NumericEntry> {
        self.current.map(|value| numeric(Some(value)))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.mean().map(|value| numeric(Some(value)))
    }

    fn final_value(&self) -> NumericEntry {
        numeric(self.mean())
    }
}
