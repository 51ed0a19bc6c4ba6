use std::ops::Range;

use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::Tensor;
use burn::tensor::module::linear;

use crate::parameters::Part;
use crate::weights::{has_parts, read_part};

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

    /// How many classes there are, if the head can compute [some alone](Self::logits_of). Without a number, as here, the loss
    /// goes over all of them at once.
    fn classes(&self) -> Option<usize> {
        None
    }

    /// The logits of some of the classes, to the bit as they are among all of them or nearly so.
    ///
    /// A head that has a [`Linear`] or an [`Embedding`] asks it: only they have the gradient of their weight put together from
    /// those of parts.
    ///
    /// # Shapes
    ///
    /// - hidden: `[tokens, d_model]`
    /// - output: `[tokens, classes.len()]`
    fn logits_of(&self, hidden: Tensor<2>, classes: Range<usize>) -> Tensor<2> {
        self.logits(hidden).slice_dim(1, classes)
    }
}

impl Head for Linear {
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.forward(hidden)
    }

    fn classes(&self) -> Option<usize> {
        has_parts(&self.weight).then(|| self.weight.lazy_shape()[1])
    }

    fn logits_of(&self, hidden: Tensor<2>, range: Range<usize>) -> Tensor<2> {
        let bias = Part {
            dim: 0,
            range: range.clone(),
        };
        let bias = self.bias.as_ref().map(|it| read_part(it, &bias));
        linear(
            hidden,
            read_part(&self.weight, &Part { dim: 1, range }),
            bias,
        )
    }
}

/// A tied head: the logit of a token is the product of its embedding with the hidden state.
impl Head for Embedding {
    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        hidden.matmul(self.weight.val().transpose())
    }

    fn classes(&self) -> Option<usize> {
        has_parts(&self.weight).then(|| self.weight.lazy_shape()[0])
    }

    fn logits_of(&self, hidden: Tensor<2>, range: Range<usize>) -> Tensor<2> {
        let rows = read_part(&self.weight, &Part { dim: 0, range });
        hidden.matmul(rows.transpose())
    }
}
