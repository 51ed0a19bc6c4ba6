//! The steps of a fused optimizer.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::FusedOptimizer;
use super::run::Order;
use crate::caught::catch;
use crate::device::{caught, check_connected};
use crate::error::FusedError;
use crate::loss::Loss;
use crate::pass::Closure;
use crate::policy::{Goal, Plan};
use crate::report::StepReport;

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
    /// If the optimizer panics (Muon on a parameter that is not of rank 2), that parameter and those
    /// whose gradient had not arrived are unchanged.
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
    /// If the loss depends on no trainable parameter, or the policies need a closure that can
    /// [run twice](Self::step_repeatable): nothing has changed then. If a
    /// [hook](Self::with_hook) stops the step: its parameter and those whose gradient had not arrived
    /// are unchanged then.
    pub fn try_step<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        if self.policies.measures_first() {
            self.report = StepReport::default();
            return Err(FusedError::RunsTwice);
        }
        let mut forward = Some(forward);
        self.update(learning_rate.into(), |fused, order| {
            let forward = forward.take().expect("the plan is one pass");
            fused.pass_of_loss(order, forward)
        })
    }

    /// [`step`](Self::step) with a closure that may run twice: what
    /// [exact clipping](crate::GlobalNormClippingConfig::Exact) and
    /// [skipping a step](crate::Overflow::SkipStep) need. Without them, it runs once.
    ///
    /// Both runs see the same random numbers, so dropout drops the same elements: their seed is
    /// drawn from the generator of the device before the first. Burn's generators are shared by all
    /// threads: where another one draws from them meanwhile, both runs are repeated, with pauses for about two
    /// seconds, and if that does not help, the step ends with [`FusedError::RandomNumbers`], which says what has not
    /// moved. Running statistics are updated once. The output of the second run is returned.
    ///
    /// CubeCL devices would have to be waited for. There the seeds of all steps come from the first, and
    /// whether both runs saw the same numbers is known when the next step waits for the norm of its gradients:
    /// that step ends with the error then and updates nothing, while the one before has used gradients that were
    /// clipped by the norm of others. The last step of a training is not looked at.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step).
    pub fn step_repeatable<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> L {
        self.try_step_repeatable(learning_rate, forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`step_repeatable`](Self::step_repeatable).
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step). If the norm is not finite and there is no loss scale to
    /// blame, nothing has changed.
    pub fn try_step_repeatable<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> Result<L, FusedError> {
        self.update(learning_rate.into(), |fused, order| {
            fused.pass_of_loss(order, &forward)
        })
    }

    /// Forward and backward without an update: the gradients are added to those accumulated since
    /// the last [`step`](Self::step), which uses them up.
    ///
    /// Equal to Burn's [`GradientsAccumulator`](burn::optim::GradientsAccumulator). The accumulated
    /// gradients take the memory of the parameters, as they do in Burn; those of an optimizer that
    /// [accumulates in its state](Self::accumulating_in_state) take none.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step).
    pub fn accumulate<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        self.try_accumulate(forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`accumulate`](Self::accumulate).
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step). Whatever ends the backward pass of a micro-batch when sums were overwritten
    /// already, a panic in the second run of a block, too, is [`FusedError::AccumulatedLost`]: all accumulated
    /// gradients are dropped then, in any other case they are those of before.
    pub fn try_accumulate<L: Loss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        self.add(|fused, order| fused.pass_of_loss(order, forward))
    }

    /// Steps with the accumulated gradients alone, for loops that learn too late which micro-batch
    /// was the last: the update of [`step`](Self::step), without its forward and backward pass.
    ///
    /// # Panics
    ///
    /// With the message of the error that
    /// [`try_step_accumulated`](Self::try_step_accumulated) returns.
    pub fn step_accumulated(&mut self, learning_rate: impl Into<ModuleLearningRate>) {
        self.try_step_accumulated(learning_rate)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The fallible [`step_accumulated`](Self::step_accumulated).
    ///
    /// # Errors
    ///
    /// If nothing has been accumulated since the last step, the norm is not finite, or a hook stops
    /// the step.
    pub fn try_step_accumulated(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
    ) -> Result<(), FusedError> {
        if !self.has_accumulated() {
            self.report = StepReport::default();
            return Err(FusedError::NothingAccumulated);
        }
        self.update(learning_rate.into(), |fused, order| {
            let nothing = |_: &M, _: &_| Ok(((), GradientsParams::new()));
            fused.run(Closure::Nothing, order, nothing)
        })
    }

    /// Adds up the gradients of one pass. If it fails after it has overwritten a sum, all that was accumulated is dropped.
    pub(super) fn add<R>(
        &mut self,
        run: impl FnOnce(&mut Self, Order) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        let add = || {
            self.noting_lost_devices(|fused| {
                if !fused.policies.in_state() {
                    let plan = fused.policies.plan(Goal::Accumulate, None);
                    return run(fused, plan.into());
                }
                fused.one_pass(|fused, mut order| {
                    order.plan.goes_on = true;
                    run(fused, order)
                })
            })
        };
        let ended = catch(add);
        let go_on = || ended.unwrap_or_else(|panic| panic.resume());
        let lost = self.form.views().lost_accumulated().map(str::to_string);
        let Some(path) = lost else {
            return go_on();
        };
        self.drop_accumulated();
        let reason = match caught(go_on) {
            Ok(ended) => ended
                .err()
                .map_or_else(String::new, |error| error.to_string()),
            Err(panic) => panic,
        };
        Err(FusedError::AccumulatedLost { path, reason })
    }

    /// Updates the parameters in one pass or two, as the policies ask for.
    pub(super) fn update<R>(
        &mut self,
        learning_rate: ModuleLearningRate,
        run: impl FnMut(&mut Self, Order) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        self.session.update().learning_rate = learning_rate;
        let update = |fused: &mut Self| match fused.policies.measures_first() {
            true => fused.two_passes(run),
            false => fused.one_pass(run),
        };
        let ended = catch(|| self.noting_lost_devices(update));
        if !matches!(ended, Ok(Ok(_))) && !self.policies.bear_overflow() {
            self.drop_accumulated_if_not_finite();
        }
        ended.unwrap_or_else(|panic| panic.resume())
    }

    /// A panic of `run` is an error if a device is lost: who reads from it first is the first to notice.
    fn noting_lost_devices<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        catch(|| run(self)).unwrap_or_else(|panic| {
            check_connected(|| match self.form.layout().member() {
                Some(member) => member.group.devices().to_vec(),
                None => self.form.module.devices(),
            })?;
            panic.resume()
        })
    }

    fn one_pass<R>(
        &mut self,
        run: impl FnOnce(&mut Self, Order) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        let coefficient = self.policies.lagged_coefficient();
        let plan = self.policies.plan(Goal::Update, coefficient);
        let output = run(self, plan.clone().into())?;
        let norm = plan.norm()?.map(|norm| norm.value);
        self.report.overflowed = plan.overflowed();
        self.end_step(&plan, coefficient, norm);
        Ok(output)
    }

    /// Reports what the policies did, and lets them learn from it.
    pub(super) fn end_step(&mut self, plan: &Plan, coefficient: Option<f64>, norm: Option<f64>) {
        let clips = self.policies.clipping().is_some();
        self.report.gradient_norm = norm;
        self.report.clipping = clips.then(|| coefficient.unwrap_or(1.0));
        self.report.loss_scale = plan.scale;
        self.policies.adapt(norm, self.report.overflowed);
    }
}
