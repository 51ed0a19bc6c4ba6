//! One pass of a fused optimizer.

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};

use super::FusedOptimizer;
use super::retained;
use crate::error::FusedError;
use crate::gradient_checkpointing;
use crate::loss::Loss;
use crate::memory;
use crate::pass::Phase;
use crate::policy::{Goal, Plan};
use crate::report::StepReport;
use crate::slot::FusedForm;

impl<M: Module> FusedOptimizer<M> {
    /// A pass whose closure returns the loss.
    pub(super) fn pass_of_loss<L: Loss>(
        &mut self,
        plan: Plan,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        let pass = self.pass.clone();
        let left = self.form.inventory().retained();
        let (goal, scale) = (plan.goal, plan.scale);

        let loss = self.run(Phase::Forward, plan, |model| {
            let loss = forward(model);
            if !loss.is_tracked() {
                return Err(FusedError::LossNotTracked);
            }
            pass.set_phase(Phase::Backward);
            memory::enter(memory::Phase::Backward);
            let (loss, mut gradients) = loss.backward(scale);
            let gradients = GradientsParams::from_params(&mut gradients, model, &left);
            Ok((loss, gradients))
        })?;

        if goal != Goal::Measure {
            self.check_reached()?;
        }
        Ok(loss)
    }

    /// Refuses a pass whose loss has reached no parameter, and that had nothing else to use.
    pub(super) fn check_reached(&self) -> Result<(), FusedError> {
        let parameters = self.form.trained();
        match self.report.updated == 0 && self.report.without_gradient == parameters {
            true => Err(FusedError::LossWithoutParameters { parameters }),
            false => Ok(()),
        }
    }

    /// A pass whose closure runs the backward pass, and returns the gradients of the parameters that
    /// are left.
    pub(super) fn run<R>(
        &mut self,
        phase: Phase,
        plan: Plan,
        closure: impl FnOnce(&M) -> Result<(R, GradientsParams), FusedError>,
    ) -> Result<R, FusedError> {
        let (result, ended, error) = {
            let _running = self.pass.begin(phase, plan.clone());
            let _blocks = gradient_checkpointing::enter(self.gradient_checkpointing.clone());
            // Also when the closure panics: no slot may hold on to a graph.
            let _released = Released(&self.form);
            if memory::is_recording() {
                self.form.slots().for_each(|slot| slot.show());
            }
            memory::enter(memory::Phase::Forward);
            let (output, mut gradients) = closure(&self.form.module)?;
            let of_blocks = gradient_checkpointing::take_leaf_gradients();
            if !of_blocks.is_empty() {
                let all = std::iter::once(gradients).chain(of_blocks);
                gradients = retained::sum(&self.form.module, all);
            }
            self.form.slots().for_each(|slot| slot.flush());
            let result = (output, gradients);
            (result, self.form.end(), self.pass.take_error())
        };
        let (output, retained_gradients) = result;
        if let Some(error) = error {
            return Err(error);
        }

        let received = ended.iter().filter(|(_, slot)| slot.received).count();
        let received = received + retained_gradients.len();
        let copied: Option<Vec<bool>> = ended.iter().map(|(_, slot)| slot.copied).collect();
        let mut report = StepReport {
            updated: ended.iter().filter(|(_, slot)| slot.updated).count(),
            without_gradient: self.form.trained().saturating_sub(received),
            vetoed: ended.iter().filter(|(_, slot)| slot.vetoed).count(),
            copied: copied.map(|copied| copied.into_iter().filter(|copied| *copied).count()),
            gradients_alive: self.pass.census().map(|census| census.take()),
            ..StepReport::default()
        };
        for (id, slot) in ended {
            if !slot.received && self.told.insert(id) {
                let path = self.form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        self.use_retained(&plan, retained_gradients, &mut report)?;
        self.report = report;
        Ok(output)
    }

    /// Does with the gradients of the parameters that are ordinary leaves what the pass is for.
    fn use_retained(
        &mut self,
        plan: &Plan,
        mut gradients: GradientsParams,
        report: &mut StepReport,
    ) -> Result<(), FusedError> {
        let module = &self.form.module;
        let inventory = self.form.inventory();
        match plan.goal {
            Goal::Accumulate => self.retained_gradients.accumulate(module, gradients),
            Goal::Measure => {
                let accumulated = self.retained_gradients.grads();
                retained::call_hooks(module, inventory, plan, &mut gradients, &accumulated)?;
                self.retained_gradients.accumulate(module, accumulated);
            }
            Goal::Update => {
                self.retained_gradients.accumulate(module, gradients);
                let mut gradients = self.retained_gradients.grads();
                let arrived = gradients.len();
                let nothing = GradientsParams::new();
                retained::call_hooks(module, inventory, plan, &mut gradients, &nothing)?;
                report.vetoed += arrived - gradients.len();
                report.updated += gradients.len();
                if gradients.is_empty() {
                    return Ok(());
                }
                let mut update = self.pass.update();
                let learning_rate = update.learning_rate.clone();
                let module = self.form.module.clone();
                self.form.module = update.optimizer.step(learning_rate, module, gradients);
            }
        }
        Ok(())
    }

    /// Whether a step has gradients to use before its pass.
    pub(super) fn has_accumulated(&mut self) -> bool {
        let left = self.retained_gradients.grads();
        let found = !left.is_empty() || self.form.slots().any(|slot| slot.has_accumulated());
        self.retained_gradients.accumulate(&self.form.module, left);
        found
    }

    /// Forgets the gradients accumulated so far.
    pub(crate) fn drop_accumulated(&mut self) {
        self.form.slots().for_each(|slot| slot.drop_accumulated());
        self.retained_gradients = GradientsAccumulator::new();
    }
}

/// Ends the pass in every slot when dropped.
struct Released<'a, M: Module>(&'a FusedForm<M>);

impl<M: Module> Drop for Released<'_, M> {
    fn drop(&mut self) {
        self.0.end();
        memory::enter(memory::Phase::Other);
    }
}
