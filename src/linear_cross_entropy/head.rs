use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::Tensor;

/// The layer that turns hidden states into logits, one for each class.
///
/// Of Burn's layers it is [`Linear`], and, tied to the input, [`Embedding`]. A head of your own (with adapters in other places, with a
/// norm before it) is a module that implements it:
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
    /// The logits of every class for every token, without soft cap.
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
