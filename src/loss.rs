use burn::tensor::{Gradients, Tensor};

/// What the forward closure of a step returns: a loss of any rank, alone or with anything else.
///
/// ```
/// # use backburn::FusedOptimizer;
/// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::{Device, Tensor}};
/// # let device = Device::flex().autodiff();
/// # let model: Linear = LinearConfig::new(2, 1).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
/// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
/// let loss: Tensor<1> = fused.step(0.1, |model| model.forward(x.clone()).mean());
/// let (loss, output) = fused.step(0.1, |model| {
///     let output = model.forward(x);
///     (output.clone().mean(), output)
/// });
/// # let _: (Tensor<1>, Tensor<2>) = (loss, output);
/// ```
pub trait Loss: sealed::Sealed + Sized {
    /// Whether a backward pass can start from the loss.
    #[doc(hidden)]
    fn has_graph(&self) -> bool;

    /// The elements of the loss, without autodiff.
    #[doc(hidden)]
    fn numbers(&self) -> Tensor<1>;

    /// Runs the backward pass of the loss multiplied by `scale`, and detaches the loss.
    #[doc(hidden)]
    fn go_back(self, scale: Option<f64>) -> (Self, Gradients);
}

impl<const D: usize> Loss for Tensor<D> {
    fn has_graph(&self) -> bool {
        Tensor::is_tracked(self)
    }

    fn numbers(&self) -> Tensor<1> {
        let elements = self.shape().num_elements();
        self.clone().inner().reshape([elements])
    }

    fn go_back(self, scale: Option<f64>) -> (Self, Gradients) {
        let scaled = scale.map(|scale| self.clone().mul_scalar(scale));
        let gradients = Tensor::backward(scaled.as_ref().unwrap_or(&self));
        drop(scaled);
        (self.detach(), gradients)
    }
}

impl<const D: usize, T> Loss for (Tensor<D>, T) {
    fn has_graph(&self) -> bool {
        self.0.has_graph()
    }

    fn numbers(&self) -> Tensor<1> {
        self.0.numbers()
    }

    fn go_back(self, scale: Option<f64>) -> (Self, Gradients) {
        let (loss, gradients) = self.0.go_back(scale);
        ((loss, self.1), gradients)
    }
}

mod sealed {
    use burn::tensor::Tensor;

    pub trait Sealed {}

    impl<const D: usize> Sealed for Tensor<D> {}
    impl<const D: usize, T> Sealed for (Tensor<D>, T) {}
}
