//! A stock loop with sums, scaling, clipping and averages by formula.

use std::collections::HashSet;

use crate::common::*;
use crate::in_state::{Given, in_state};
use crate::mean::Means;
use crate::model::{Batch, Model};
use crate::options::Options;
use crate::policy::Policy;
use crate::rows::{Gradients, Rows, known};
use crate::sums::summed;

pub const RATE: f64 = 0.02;

enum Update {
    Stock(Box<ModuleOptimizer>),
    /// A fused training that accumulates in its state from given gradients, with the parameters that have accumulated
    /// some.
    InState(Box<FusedOptimizer<Model>>, Given, HashSet<ParamId>),
}

pub struct ByHand {
    options: Options,
    pub model: Model,
    update: Update,
    sum: Gradients,
    pub policy: Policy,
    means: Option<Means>,
}

impl ByHand {
    pub fn new(options: Options, model: Model) -> Self {
        let update = if options.in_state() {
            let given = Given::default();
            let fused = in_state(&options, copy(&model, || Model::init(&options)));
            let fused = fused.unwrap().with_hook(ParamGroup::all(), given.clone());
            Update::InState(Box::new(fused), given, HashSet::new())
        } else {
            Update::Stock(Box::new(options.optimizer()))
        };
        Self {
            update,
            sum: Gradients::new(),
            policy: Policy::new(options),
            means: options.averaging().map(|config| Means::new(config, &model)),
            options,
            model,
        }
    }

    /// Runs a micro-batch that is not the last. `told` is the norm that the fused pass reports.
    pub fn add(&mut self, batches: &[Batch], told: Option<f64>) {
        if self.options.in_state() {
            self.pass(batches, false, told);
        } else {
            self.sum = self.summed(batches, true);
        }
    }

    pub fn step(&mut self, batches: &[Batch], told: Option<f64>) {
        self.pass(batches, true, told);
    }

    fn pass(&mut self, batches: &[Batch], is_last: bool, told: Option<f64>) {
        let statistics = self.model.statistics();
        let mut gradients = self.summed(batches, false);
        self.sum.clear();
        let factor = self.policy.factor(&gradients, told);
        if let Some(factor) = factor {
            let known = known(&self.model);
            self.policy.change(&mut gradients, &known, factor);
        }
        self.policy
            .adapt(batches.iter().any(|batch| batch.overflows));
        if factor.is_none() {
            // A skipped step changes nothing else.
            if !self.policy.is_in_buffer() {
                self.model.set_statistics(&statistics);
            }
            return;
        }
        let updated = self.use_gradients(gradients, is_last);
        if let Some(means) = &mut self.means {
            means.take(&self.model, &updated);
        }
    }

    /// Passes gradients to the optimizer, and returns the updated parameters.
    fn use_gradients(&mut self, gradients: Gradients, is_last: bool) -> Vec<ParamId> {
        let these: Vec<ParamId> = gradients.keys().copied().collect();
        match &mut self.update {
            Update::Stock(optimizer) => {
                let mut rows = Rows(gradients, GradientsParams::new());
                self.model.visit(&mut rows);
                self.model = optimizer.step(RATE, self.model.clone(), rows.1);
                these
            }
            Update::InState(fused, given, begun) => {
                begun.extend(these);
                given.give(gradients, is_last);
                // It reads all parameters.
                let all = Batch::of_rows(2);
                if is_last {
                    fused.step(RATE, |model| model.loss(&all, false)).unwrap();
                } else {
                    fused.accumulate(|model| model.loss(&all, false)).unwrap();
                }
                let statistics = self.model.statistics();
                let record = fused.model().into_record();
                self.model = self.model.clone().load_record(record);
                self.model.set_statistics(&statistics);
                if is_last {
                    begun.drain().collect()
                } else {
                    Vec::new()
                }
            }
        }
    }

    fn summed(&self, batches: &[Batch], more: bool) -> Gradients {
        let (before, scale) = (self.sum.clone(), self.policy.scale());
        summed(
            &self.options,
            self.options.devices,
            &self.model,
            before,
            scale,
            (batches, more, self.policy.is_in_buffer()),
        )
    }

    /// Runs a step that fails at its norm after its gradients were buffered.
    pub fn fail_in_buffer(&mut self, batches: &[Batch]) {
        self.summed(batches, false);
        self.drop_sum();
    }

    pub fn drop_sum(&mut self) {
        self.sum.clear();
    }

    pub fn change_model(&mut self, change: impl Fn(Model) -> Model) {
        self.model = change(self.model.clone());
        if let Update::InState(fused, ..) = &mut self.update {
            fused.change_model(change).unwrap();
        }
        self.drop_sum();
    }

    pub fn averaged(&self) -> Model {
        let means = self.means.as_ref();
        means.map_or_else(|| self.model.clone(), |means| means.put_in(&self.model))
    }
}
