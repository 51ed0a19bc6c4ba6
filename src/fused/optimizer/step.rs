//! Steps on one device.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::fused::Loss;
use crate::fused::policies::StepSchedule;
use crate::pass::ClosureKind;

impl<M: Module> FusedOptimizer<M> {
    /// Runs one training step: forward, backward, update.
    ///
    /// `forward` computes the loss, a tensor with any number of dimensions, or the loss and anything else as a tuple. The
    /// backward pass runs after `forward` has returned, and each parameter is updated with `learning_rate` as soon as its
    /// gradient is complete. Returns the result of `forward`, with the loss detached.
    ///
    /// [Accumulated](Self::accumulate) gradients are added to those of this pass and then dropped.
    ///
    /// # Errors
    ///
    /// - The loss depends on no trainable parameter, or the policies need a closure that can [run
    ///   twice](Self::step_repeatable): nothing has changed.
    /// - A [hook](Self::with_hook) stops the step, or a gradient is not finite with [lagged
    ///   clipping](crate::GlobalNormClippingConfig::Lagged) ([`GradientNotFinite`](FusedError::GradientNotFinite)): its parameter
    ///   and those whose gradient had not arrived are unchanged.
    /// - The norm is not finite: no parameter has changed ([`NormNotFinite`](FusedError::NormNotFinite)), or all have been
    ///   updated ([`UpdatedNotFinite`](FusedError::UpdatedNotFinite)).
    /// - A recomputed block reads other parameters, or computes or draws other numbers than in its first run
    ///   ([`BlockReads`](FusedError::BlockReads), [`RandomNumbers`](FusedError::RandomNumbers),
    ///   [`RandomNumbersLocked`](FusedError::RandomNumbersLocked)): the message says which parameters are unchanged.
    /// - A device or a transfer fails.
    ///
    /// # Panics
    ///
    /// If `forward` runs a backward pass itself, returns a loss that already had a backward pass, or reads a parameter
    /// without `Param::val()` on `flex` or `ndarray`. (On other backends that read returns NaN, and the backward pass
    /// panics if the loss depends on it.) A panic in `forward` is passed on. In all these cases every parameter and state is
    /// unchanged, and the step can be repeated, except after a panic in the second run of a recomputed block.
    ///
    /// If the optimizer panics (Burn's Muon on a parameter that is not a matrix), parameters whose gradient had not
    /// arrived are unchanged. The optimizer state of the parameter is lost, unless it is offloaded. The message says
    /// whether the parameter kept its value, was updated, or lost its value because the optimizer panicked while it wrote
    /// in place.
    pub fn step<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        if self.core.policies.schedule == StepSchedule::TwoPass {
            return self.core.refuse(FusedError::RunsTwice);
        }
        let mut forward = Some(forward);
        self.core.step(
            Some(learning_rate.into()),
            ClosureKind::Loss,
            &mut |running| running.run_loss(forward.take().expect("the step is one pass")),
        )
    }

    /// Runs a [`step`](Self::step) with a closure that may run twice, as [exact
    /// clipping](crate::GlobalNormClippingConfig::Exact) and [skipping a step](crate::Overflow::SkipStep) require.
    /// Without them, it runs once.
    ///
    /// Both runs draw the same random numbers, so dropout drops the same elements: their seed is drawn from the
    /// generator of the device before the first run. Running statistics are updated once. The output of the second run
    /// is returned.
    ///
    /// All threads share Burn's generators. Steps that draw lock them, so trainings on several threads take turns. A thread
    /// of a rayon pool does not wait, and others end the wait if the holder makes no progress for ten seconds: the step of
    /// a model that has drawn before then fails with
    /// [`FusedError::RandomNumbersLocked`], and nothing has changed. If the losses or the gradients of the two runs
    /// differ, because another thread draws or the closure has a generator of its own, the step fails with
    /// [`FusedError::RandomNumbers`], which says which parameters are unchanged. CubeCL devices are not checked, because
    /// the check would wait for the device, and the seeds of all steps come from the first step.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`step`](Self::step), except [`FusedError::RunsTwice`]. If the norm is not finite and the loss scale
    /// is not the cause, nothing has changed, except for running statistics if gradients are
    /// [buffered](crate::GlobalNormClippingConfig::ExactInBuffer).
    ///
    /// # Panics
    ///
    /// Panics as [`step`](Self::step) does.
    pub fn step_repeatable<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> Result<L, FusedError> {
        self.core.step(
            Some(learning_rate.into()),
            ClosureKind::Loss,
            &mut |running| running.run_loss(&forward),
        )
    }

    /// Runs the forward and backward pass of a micro-batch, and adds its gradients to those accumulated since the last
    /// [`step`](Self::step). The next step applies them.
    ///
    /// The sums equal those of Burn's [`GradientsAccumulator`](burn::optim::GradientsAccumulator). The accumulated
    /// gradients take the memory of the parameters, as they do in Burn; those of an optimizer that [accumulates in its
    /// state](Self::accumulating_in_state) take none.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`step`](Self::step), except [`FusedError::RunsTwice`]. If the backward pass of a micro-batch ends
    /// after it has changed a sum, for example by a panic in a recomputed block, the error is [`FusedError::AccumulatedLost`] and
    /// all accumulated gradients are dropped. After any other error they are unchanged, except that gradients in the optimizer
    /// state can't be removed.
    ///
    /// # Panics
    ///
    /// Panics as [`step`](Self::step) does.
    pub fn accumulate<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> Result<L, FusedError> {
        let mut forward = Some(forward);
        self.core.step(None, ClosureKind::Loss, &mut |running| {
            running.run_loss(forward.take().expect("an accumulation is one pass"))
        })
    }

    /// Runs [`step_repeatable`](Self::step_repeatable) with a closure that runs the backward pass itself, as a stock
    /// loop does, for the gradients of tensors that are not parameters.
    ///
    /// ```
    /// # use backburn::FusedOptimizer;
    /// # use burn::{nn::LinearConfig, optim::SgdConfig};
    /// use burn::optim::GradientsParams;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(2, 1).init(&device);
    /// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
    /// let x = Tensor::<2>::ones([3, 2], &device).require_grad();
    /// let gradient = fused.step_with_backward(1e-3, |model| {
    ///     let gradients = model.forward(x.clone()).mean().backward();
    ///     let of_input = x.grad(&gradients).unwrap();
    ///     (of_input, GradientsParams::from_grads(gradients, model))
    /// })?;
    /// assert_eq!(gradient.dims(), [3, 2]);
    /// # Ok::<(), backburn::FusedError>(())
    /// ```
    ///
    /// `train` returns any value, and the gradients of the model as Burn's optimizers take them. They contain the gradients of
    /// parameters that are [retained](Self::num_retained) to the end of the pass, and a stand-in for each other one that is read
    /// outside of checkpointed blocks. Its gradient was applied and released: a [hook](Self::with_hook) receives it. On a CubeCL device
    /// the backward pass must run on the thread of the closure, because each thread has its own stream. With loss
    /// scaling, `train` runs the backward pass of [`scale_loss`](crate::scale_loss) of its loss, and all gradients are
    /// scaled.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`step_repeatable`](Self::step_repeatable), and one if loss scaling is on and `train` did
    /// not scale its loss. In this case nothing has changed. If `train` replaces or removes a stand-in, or adds a gradient, the error is
    /// [`FusedError::GradientReturned`]. It may leave out all stand-ins.
    ///
    /// # Panics
    ///
    /// Panics as [`step`](Self::step) does, but `train` may run one backward pass. It also panics if `train` reads a stand-in, or a
    /// parameter after its gradient was applied (on CubeCL and remote devices a stand-in is NaN). If it panics after the backward pass,
    /// the parameters that were stepped keep their new values and states.
    pub fn step_with_backward<R>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        mut train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> Result<R, FusedError> {
        let learning_rate = Some(learning_rate.into());
        self.core
            .step(learning_rate, ClosureKind::Backward, &mut |running| {
                let (rank, model) = (&running.rank_passes[0], &running.attached_modules[0].module);
                rank.run(|| {
                    let (output, gradients) = train(model);
                    rank.check_reached(model, &gradients)?;
                    // The closure may leave out all stand-ins.
                    rank.check_unedited(&gradients, false)?;
                    Ok((output, gradients))
                })
            })
    }

    /// Runs a step of a `TrainStep`, or without a learning rate an accumulation. It may reach no parameter.
    #[cfg(feature = "train")]
    pub(crate) fn train_step<R>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> Result<R, FusedError> {
        self.core
            .step(learning_rate, ClosureKind::Backward, &mut |running| {
                let (rank, model) = (&running.rank_passes[0], &running.attached_modules[0].module);
                rank.run(|| {
                    let (output, gradients) = train(model);
                    // A `TrainStep` returns the gradients of all parameters.
                    rank.check_unedited(&gradients, true)?;
                    Ok((output, gradients))
                })
            })
    }

    /// Runs a forward and backward pass without an update: gradients are released and not applied, and hooks are not
    /// called. Running statistics are restored. Random numbers are drawn as in a step, and
    /// [`last_step`](Self::last_step) returns the report of this pass.
    ///
    /// A [memory recorder](crate::memory::MemoryRecorder) measures with it the activations of a pass before the first step and
    /// without optimizer state.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`step`](Self::step), except those of policies and hooks, which are not called.
    ///
    /// # Panics
    ///
    /// Panics as [`step`](Self::step) does.
    pub fn dry_run<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> Result<L, FusedError> {
        self.core.dry_run(|running| running.run_loss(forward))
    }
}
