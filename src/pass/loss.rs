use burn::tensor::Tensor;

use super::Scope;

/// Multiplies a loss by the loss scale, in code that runs the backward pass itself under loss scaling: the
/// `TrainStep::step` of a model trained by `FusedLearner`, or a closure given to
/// [`FusedOptimizer::step_with_backward`](crate::FusedOptimizer::step_with_backward).
/// Everywhere else it returns `loss`: what a closure given to
/// [`FusedOptimizer::step`](crate::FusedOptimizer::step) returns is scaled afterwards.
///
/// On another thread than the closure's it needs its [`StepContext`](crate::StepContext).
///
/// ```ignore
/// TrainOutput::new(self, scale_loss(output.loss.clone()).backward(), output)
/// ```
pub fn scale_loss<const D: usize>(loss: Tensor<D>) -> Tensor<D> {
    match Scope::current().and_then(|scope| scope.pass.take_scale()) {
        Some(scale) => loss.mul_scalar(scale),
        None => loss,
    }
}
