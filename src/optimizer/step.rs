//! The passes of a fused optimizer.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::loss::Loss;
use crate::memory;
use crate::pass::{Goal, Phase};
use crate::policy::{GlobalNormClipping, norm, scaled, squares_of};
use crate::report::StepReport;
use crate::slot::FusedForm;

impl<M: Module> FusedOptimizer<M> {
    /// One training step: forward, backward, update.
    ///
    /// `forward` computes the loss, a tensor of any rank, or the loss and anything else as a tuple.
    /// The backward pass runs after it has returned, and each parameter is stepped with
    /// `learning_rate` as its gradient completes. Returns what `forward` returned, the loss
    /// detached.
    ///
    /// Gradients [accumulated](Self::accumulate) before are added, and used up.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_step`](Self::try_step) returns; if `forward` runs a
    /// backward pass itself or has run one over its loss before; if it reads a parameter around
    /// `Param::val()`. A panic in `forward` is passed on. In all these cases every parameter and
    /// state is unchanged and the step can be repeated.
    ///
    /// If the optimizer panics (Muon on a parameter that is not of rank 2), the parameters whose
    /// gradient had not arrived, and that parameter if it was its first update, are unchanged.
    pub fn step<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> L {
        self.try_step(learning_rate, forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// If the loss depends on no trainable parameter. Nothing has changed then.
    pub fn try_step<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        if let Some(GlobalNormClipping::Exact(_)) = self.clipping {
            return Err(FusedError::RunsTwice);
        }
        self.pass.set_learning_rate(learning_rate.into());
        self.pass.set_coefficient(self.lagged_coefficient());
        self.pass_of_loss(Goal::Update, forward)
    }

    /// Forward and backward without an update: the gradients are added to those accumulated since
    /// the last [`step`](Self::step), which uses them up.
    ///
    /// Equal to Burn's [`GradientsAccumulator`](burn::optim::GradientsAccumulator). The accumulated
    /// gradients take the memory of the parameters, as they do in Burn.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step).
    pub fn accumulate<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        self.pass_of_loss(Goal::Accumulate, forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(super) fn pass_of_loss<L: Loss>(
        &mut self,
        goal: Goal,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        let pass = self.pass.clone();
        let left = self.form.inventory().left();
        let parameters = self.form.trained();

        let loss = self.run(Phase::Forward, goal, |model| {
            let loss = forward(model);
            if !loss.is_tracked() {
                return Err(FusedError::LossNotTracked);
            }
            pass.set_phase(Phase::Backward);
            memory::enter(memory::Phase::Backward);
            let (loss, mut gradients) = loss.backward();
            let gradients = GradientsParams::from_params(&mut gradients, model, &left);
            Ok((loss, gradients))
        })?;

        let used = self.report.updated > 0 || goal == Goal::Measure;
        if self.report.without_gradient == parameters && !used {
            return Err(FusedError::LossWithoutParameters { parameters });
        }
        Ok(loss)
    }

    /// A pass whose closure runs the backward pass itself, and returns the gradients of the
    /// parameters that are left.
    #[cfg(feature = "train")]
    pub(crate) fn pass_with_backward<R>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        train: impl FnOnce(&M) -> (R, GradientsParams),
    ) -> R {
        let goal = match learning_rate {
            Some(learning_rate) => {
                self.pass.set_learning_rate(learning_rate);
                self.pass.set_coefficient(self.lagged_coefficient());
                Goal::Update
            }
            None => Goal::Accumulate,
        };
        self.run(Phase::Backward, goal, |model| Ok(train(model)))
            .expect("the closure does not fail")
    }

    fn run<R>(
        &mut self,
        phase: Phase,
        goal: Goal,
        closure: impl FnOnce(&M) -> Result<(R, GradientsParams), FusedError>,
    ) -> Result<R, FusedError> {
        let (result, ended) = {
            let _running = self.pass.begin(phase, goal);
            // Also when the closure panics: no slot may hold on to a graph.
            let _released = Released(&self.form);
            if memory::is_recording() {
                self.form.slots().for_each(|slot| slot.show());
            }
            memory::enter(memory::Phase::Forward);
            let result = closure(&self.form.module)?;
            self.form.slots().for_each(|slot| slot.flush());
            (result, self.form.end())
        };
        let (output, left_gradients) = result;

        let received = ended.iter().filter(|(_, slot)| slot.received).count();
        let received = received + left_gradients.len();
        let without_gradient = self.form.trained().saturating_sub(received);
        let updated = ended.iter().filter(|(_, slot)| slot.updated).count();
        // In the same order every time, so that the sum is the same.
        let mut squares: Vec<_> = ended
            .iter()
            .map(|(id, slot)| (self.form.path(*id), slot))
            .collect();
        squares.sort_by_key(|(path, _)| *path);
        let squares: Vec<_> = squares
            .into_iter()
            .map(|(_, slot)| slot.squares.clone())
            .collect();
        let copied: Option<Vec<bool>> = ended.iter().map(|(_, slot)| slot.copied).collect();
        let (updated_left, squares_left) = self.step_left(goal, left_gradients);
        let squares = squares.into_iter().flatten().chain(squares_left).collect();
        self.report = StepReport {
            updated: updated + updated_left,
            without_gradient,
            copied: copied.map(|copied| copied.into_iter().filter(|copied| *copied).count()),
            gradients_alive: self.pass.census().map(|census| census.take()),
            gradient_norm: self.pass.measures().then(|| norm(squares)),
            clipping: self
                .clipping
                .map(|_| self.pass.coefficient().unwrap_or(1.0)),
        };
        self.gradient_norm = self.report.gradient_norm.or(self.gradient_norm);
        for (id, slot) in ended {
            if !slot.received && self.told.insert(id) {
                let path = self.form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        Ok(output)
    }

    /// Does with the gradients of the parameters that are ordinary leaves what the pass is for.
    /// Returns how many parameters were stepped, and the squares of what was measured.
    fn step_left(&mut self, goal: Goal, gradients: GradientsParams) -> (usize, Vec<Tensor<1>>) {
        let module = &self.form.module;
        if goal == Goal::Measure {
            let accumulated = self.left_gradients.grads();
            let squares = squares_of(module, &gradients, &accumulated);
            self.left_gradients.accumulate(module, accumulated);
            return (0, squares);
        }
        self.left_gradients.accumulate(module, gradients);
        if goal == Goal::Accumulate {
            return (0, Vec::new());
        }
        let gradients = self.left_gradients.grads();
        let squares = match self.pass.measures() {
            true => squares_of(module, &gradients, &GradientsParams::new()),
            false => Vec::new(),
        };
        let gradients = match self.pass.coefficient() {
            Some(coefficient) => scaled(module, gradients, coefficient),
            None => gradients,
        };
        let updated = gradients.len();
        if updated > 0 {
            let mut update = self.pass.update();
            let learning_rate = update.learning_rate.clone();
            let module = self.form.module.clone();
            self.form.module = update.optimizer.step(learning_rate, module, gradients);
        }
        (updated, squares)
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
