//! Steps whose closure runs the backward pass itself.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::FusedOptimizer;
use super::run::Order;
use crate::error::FusedError;
use crate::pass::Closure;

impl<M: Module> FusedOptimizer<M> {
    /// [`step_repeatable`](Self::step_repeatable) with a closure that runs the backward pass itself, as in
    /// a loop with Burn alone: for the gradients of tensors that are no parameters.
    ///
    /// ```
    /// # use backburn::FusedOptimizer;
    /// # use burn::{nn::LinearConfig, optim::SgdConfig};
    /// use burn::optim::GradientsParams;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(2, 1).init(&device);
    /// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    /// let x = Tensor::<2>::ones([3, 2], &device).require_grad();
    /// let gradient = fused.step_with_backward(1e-3, |model| {
    ///     let gradients = model.forward(x.clone()).mean().backward();
    ///     let of_input = x.grad(&gradients).unwrap();
    ///     (of_input, GradientsParams::from_grads(gradients, model))
    /// });
    /// assert_eq!(gradient.dims(), [3, 2]);
    /// ```
    ///
    /// `train` returns anything, and the gradients of the model as Burn's optimizers take them: those of
    /// the parameters [retained](Self::num_retained) to the end of the pass are still there; the others are released,
    /// and `param.val().grad(&gradients)` has none of them: a [hook](Self::with_hook) sees each. On a CubeCL device the
    /// backward pass must run on the thread of the closure, since every thread has a stream of its own there. With loss scaling it goes
    /// back from [`scale_loss`](crate::scale_loss) of its loss, and finds other gradients scaled with it.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step), but that `train` may run one backward pass.
    pub fn step_with_backward<R>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> R {
        self.try_step_with_backward(learning_rate, train)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`step_with_backward`](Self::step_with_backward).
    ///
    /// # Errors
    ///
    /// As [`try_step_repeatable`](Self::try_step_repeatable); if loss scaling is on and `train` did not
    /// scale its loss: nothing has changed then.
    pub fn try_step_with_backward<R>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> Result<R, FusedError> {
        let output = self.try_with_backward(Some(learning_rate.into()), train)?;
        self.check_reached()?;
        Ok(output)
    }

    /// A step, or without a learning rate an accumulation, which may reach no parameter.
    pub(crate) fn try_with_backward<R>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> Result<R, FusedError> {
        let mut run = |fused: &mut Self, order: Order| {
            fused.run(Closure::Backward, order, |model, _| Ok(train(model)))
        };
        match learning_rate {
            Some(learning_rate) => self.update(learning_rate, run),
            None => self.add(|fused, order| run(fused, order)),
        }
    }
}
