//! Training output without a terminal: a line for each epoch.

use std::collections::HashMap;
use std::error::Error;
use std::io::{IsTerminal, stdout};

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId, MetricName, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use burn::train::{LearnerModel, LearnerSummary, SupervisedTraining};

/// Returns `training` with Burn's display in a terminal, and with lines elsewhere.
pub fn without_a_terminal<M: LearnerModel>(
    training: SupervisedTraining<M>,
) -> SupervisedTraining<M> {
    if stdout().is_terminal() {
        training
    } else {
        training.renderer(Box::new(Lines::default()))
    }
}

#[derive(Default)]
struct Lines {
    epochs: usize,
    names: HashMap<MetricId, MetricName>,
    /// Results of the current epoch.
    results: Vec<String>,
}

impl Lines {
    fn note(&mut self, split: &str, state: MetricState) {
        if let MetricState::Numeric(entry, Some(NumericEntry::Final(value))) = state {
            let name = &self.names[&entry.metric_id];
            // More digits for a learning rate, which is small.
            let value = if value.abs() < 1e-3 {
                format!("{value:.2e}")
            } else {
                format!("{value:.4}")
            };
            self.results.push(format!("{split} {name} {value}"));
        }
    }
}

impl TrainingProgressLogger for Lines {
    fn start(&mut self, epochs: usize, _first: usize, _items: Option<usize>, _label: Option<&str>) {
        self.epochs = epochs;
    }

    fn update_epoch(&mut self, epoch: usize) {
        let results = std::mem::take(&mut self.results).join(", ");
        println!("epoch {epoch} of {}: {results}", self.epochs);
    }

    fn start_split(&mut self, _split: &str, _items: usize) {}
    fn update_split(&mut self, _items: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _event: String) {}
}

impl MetricsRendererTraining for Lines {
    fn update_train(&mut self, state: MetricState) {
        self.note("train", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.note("valid", state);
    }

    /// The lines replace the summary.
    fn on_train_end(&mut self, _summary: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

impl EvaluationProgressLogger for Lines {
    fn start_global_progress(&mut self, _tests: usize) {}
    fn start_test(&mut self, _name: &str, _items: usize) {}
    fn update_test_progress(&mut self, _items: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRendererEvaluation for Lines {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl MetricsRenderer for Lines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, metric: MetricDefinition) {
        self.names.insert(metric.metric_id, metric.name);
    }
}
