use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use crate::tap::{GradientSink, PassedGradients, tap};
use backburn_base::AnyTensor;

/// The return type of a step's forward closure: a loss of any rank, alone or in a pair with any other value.
///
/// ```
/// # use backburn::FusedOptimizer;
/// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::{Device, Tensor}};
/// # let device = Device::flex().autodiff();
/// # let model: Linear = LinearConfig::new(2, 1).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
/// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
/// let loss: Tensor<1> = fused.step(0.1, |model| model.forward(x.clone()).mean())?;
/// let (loss, output) = fused.step(0.1, |model| {
///     let output = model.forward(x);
///     (output.clone().mean(), output)
/// })?;
/// # let _: (Tensor<1>, Tensor<2>) = (loss, output);
/// # Ok::<(), backburn::FusedError>(())
/// ```
pub trait Loss: sealed::Sealed + Sized {
    /// Returns the value with its loss detached, and the loss with its graph.
    #[doc(hidden)]
    fn detached(self) -> (Self, AnyTensor);
}

/// Calls `work` when the backward pass of `root` has begun and Burn has locked the graph.
pub(crate) fn on_backward(root: Tensor<1>, work: impl Fn() + Send + Sync + 'static) -> Tensor<1> {
    let anchor = root.clone().into_dispatch();
    tap(root, anchor, Arc::new(BackwardRoot(work)))
}

/// The gradient sink at the root of a graph, whose backward step runs first.
struct BackwardRoot<F>(F);

impl<F: Fn() + Send + Sync> GradientSink for BackwardRoot<F> {
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients {
        (self.0)();
        PassedGradients {
            value: Some(gradient),
            ..PassedGradients::default()
        }
    }
}

impl<const D: usize> Loss for Tensor<D> {
    fn detached(self) -> (Self, AnyTensor) {
        (self.clone().detach(), self.into())
    }
}

impl<const D: usize, T> Loss for (Tensor<D>, T) {
    fn detached(self) -> (Self, AnyTensor) {
        let (loss, root) = self.0.detached();
        ((loss, self.1), root)
    }
}

mod sealed {
    use burn::tensor::Tensor;

    pub trait Sealed {}

    impl<const D: usize> Sealed for Tensor<D> {}
    impl<const D: usize, T> Sealed for (Tensor<D>, T) {}
}
