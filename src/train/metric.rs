use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
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
/// can appear up to two steps early, and the first ones of an epoch may be missing in its mean. A number that was not reported, or is
/// not finite, has no weight in the mean. The norm and the coefficient are reported with
/// [clipping](crate::FusedConfig::clipping), the scale with [loss scaling](crate::FusedConfig::loss_scaling).
#[derive(Clone)]
pub struct StepMetric {
    name: MetricName,
    last_step: LastStep,
    number: fn(&StepReport) -> Option<f64>,
    /// `true` if the last update has reported a finite number.
    has_current: bool,
    state: NumericMetricState,
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
            has_current: false,
            state: NumericMetricState::new(),
        }
    }

    fn format(&self) -> FormatOptions {
        FormatOptions::new(self.name.clone()).precision(4)
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
        let number = (self.number)(&self.last_step.0.lock());
        // The norm of a step that an overflow has skipped is not finite.
        let number = number.filter(|number| number.is_finite());
        self.has_current = number.is_some();
        // Burn multiplies a number by its weight, and infinity times 0 is NaN.
        self.state
            .update(number.unwrap_or_default(), self.has_current.into());
        let mut entry = self.state.compute_update(self.format());
        if let (false, Some((mean, _))) = (self.has_current, entry.formatted.split_once(" - batch"))
        {
            entry.formatted = format!("{mean} - batch N/A");
        }
        Ok(entry)
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.state.compute_final(self.format()))
    }

    fn clear(&mut self) {
        self.state.reset();
        self.has_current = false;
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
        self.has_current.then(|| self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}
