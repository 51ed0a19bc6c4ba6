//! Context of the code in a closure.

use burn::tensor::Tensor;

use super::Scope;

/// The context of a thread in a fused step, which can be passed to another thread.
///
/// The closure of a step may compute on several threads. A thread that the closure starts needs the context of the
/// starting thread if it calls a block under [`gradient_checkpointing`](crate::gradient_checkpointing()), or reads a
/// parameter of a block.
///
/// Blocks that run at the same time take their random numbers in the order in which they begin. If they draw, inside of another block
/// or in a step of two passes, that order may differ in the second run, which is the error
/// [`RandomNumbers`](crate::FusedError::RandomNumbers).
///
/// ```
/// use backburn::{FusedOptimizer, StepContext, gradient_checkpointing};
/// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::{Device, Tensor}};
/// # let device = Device::flex().autodiff();
/// # let model: Linear = LinearConfig::new(2, 2).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
/// let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
/// fused.step(0.1, |model| {
///     let context = StepContext::current().expect("a step is under way");
///     let block = || gradient_checkpointing(model, x, |model: &Linear, x| model.forward(x));
///     let output = std::thread::scope(|scope| {
///         let thread = scope.spawn(|| context.enter(block));
///         thread.join().unwrap()
///     });
///     output.mean()
/// })?;
/// # Ok::<(), backburn::FusedError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepContext(Scope);

impl StepContext {
    /// Returns the context of this thread; `None` outside of a fused step.
    pub fn current() -> Option<Self> {
        Scope::current().map(Self)
    }

    /// Runs `work` in this context.
    pub fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        let _entered = self.0.clone().enter();
        work()
    }
}

/// Multiplies a loss by the loss scale. Call it in code that runs the backward pass itself: the `TrainStep::step` of a model
/// in a `FusedLearner`, or the closure of
/// [`FusedOptimizer::step_with_backward`](crate::FusedOptimizer::step_with_backward). In
/// [`FusedOptimizer::step`](crate::FusedOptimizer::step) the scaling is automatic, and this returns the loss unchanged.
///
/// On another thread than that of the closure it needs the [`StepContext`](crate::StepContext). A thread of a rayon pool that
/// waits inside of a step also scales the loss of a stock training that it runs meanwhile: run the stock training on a thread of
/// its own.
///
/// ```ignore
/// TrainOutput::new(self, scale_loss(output.loss.clone()).backward(), output)
/// ```
pub fn scale_loss<const D: usize>(loss: Tensor<D>) -> Tensor<D> {
    match Scope::current().and_then(|scope| scope.pass.scale_of_loss()) {
        Some(scale) => loss.mul_scalar(scale),
        None => loss,
    }
}
