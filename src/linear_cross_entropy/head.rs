use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::Tensor;

/// A layer that computes logits, one per class, from hidden states.
///
/// Implemented by Burn's [`Linear`], and by [`Embedding`] for a head that is tied to the input. Implement it for your own head (with
/// adapters, or with a norm before the projection):
///
/// ```
/// use backburn::Head;
/// use burn::module::Module;
/// use burn::nn::{Linear, RmsNorm};
/// use burn::tensor::Tensor;
///
/// #[derive(Module, Debug)]
/// struct Normed {
///     norm: RmsNorm,
///     linear: Linear,
/// }
///
/// impl Head for Normed {
///     fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
///         self.linear.forward(self.norm.forward(hidden))
///     }
/// }
/// ```
pub trait Head: Module + 'static {
    /// Computes the logits of each class for each token, without soft cap.
    ///
    /// # Shapes
    ///
    /// - hidden: `[tokens, d_model]`
    /// - output: `[tokens, classes]`
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2>;
}

impl Head for Linear {
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.forward(hidden)
    }
}

/// A tied head: the logit of a token is the product of its embedding with the hidden state.
impl Head for Embedding {
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        hidden.matmul(self.weight.val().transpose())
    }
}
