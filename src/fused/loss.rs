use backburn_base::AnyTensor;
use burn::tensor::Tensor;

/// The return type of a step's forward closure: a loss with any number of dimensions, alone or in a pair with any other value.
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
