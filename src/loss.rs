use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{Gradients, Tensor};

use crate::tap::{GradientSink, PassedGradients, join};

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
    /// Returns `true` if autodiff tracks the loss.
    #[doc(hidden)]
    fn has_graph(&self) -> bool;

    /// Returns the elements of the loss, without autodiff.
    #[doc(hidden)]
    fn elements(&self) -> Tensor<1>;

    /// Runs the backward pass of the loss multiplied by `scale`, and detaches the loss. `on_backward` is called when the pass
    /// has begun and Burn has locked the graph.
    #[doc(hidden)]
    fn run_backward(self, scale: Option<f64>, on_backward: Option<OnBackward>)
    -> (Self, Gradients);
}

/// A callback at the start of a backward pass.
#[doc(hidden)]
pub type OnBackward = Box<dyn Fn() + Send + Sync>;

/// The gradient sink at the root of a graph, whose backward step runs first.
struct BackwardRoot(OnBackward);

impl GradientSink for BackwardRoot {
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients {
        (self.0)();
        PassedGradients {
            value: Some(gradient),
            anchor: None,
        }
    }
}

impl<const D: usize> Loss for Tensor<D> {
    fn has_graph(&self) -> bool {
        Tensor::is_tracked(self)
    }

    fn elements(&self) -> Tensor<1> {
        let elements = self.shape().num_elements();
        self.clone().inner().reshape([elements])
    }

    fn run_backward(
        self,
        scale: Option<f64>,
        on_backward: Option<OnBackward>,
    ) -> (Self, Gradients) {
        let mut root = self.clone();
        if let Some(scale) = scale {
            root = root.mul_scalar(scale);
        }
        if let Some(on_backward) = on_backward {
            let anchor = root.clone().into_dispatch();
            root = join(root, anchor, Arc::new(BackwardRoot(on_backward)));
        }
        let gradients = root.backward();
        drop(root);
        (self.detach(), gradients)
    }
}

impl<const D: usize, T> Loss for (Tensor<D>, T) {
    fn has_graph(&self) -> bool {
        self.0.has_graph()
    }

    fn elements(&self) -> Tensor<1> {
        self.0.elements()
    }

    fn run_backward(
        self,
        scale: Option<f64>,
        on_backward: Option<OnBackward>,
    ) -> (Self, Gradients) {
        let (loss, gradients) = self.0.run_backward(scale, on_backward);
        ((loss, self.1), gradients)
    }
}

mod sealed {
    use burn::tensor::Tensor;

    pub trait Sealed {}

    impl<const D: usize> Sealed for Tensor<D> {}
    impl<const D: usize, T> Sealed for (Tensor<D>, T) {}
}
