use std::array::from_fn;
use std::ops::Range;

use burn::tensor::Tensor;

use super::any::{AnyTensor, with_rank};

/// A part of a parameter: what lies in a range along one of its dimensions.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) dim: usize,
    pub(crate) range: Range<usize>,
}

impl Part {
    /// This part of `whole`.
    pub(crate) fn of<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        whole.slice_dim(self.dim, self.range.clone())
    }

    /// The same of a tensor of any rank.
    pub(crate) fn of_any(&self, whole: AnyTensor) -> AnyTensor {
        with_rank!(whole.shape().num_dims(), D => self.of(whole.of_rank::<D>()).into())
    }

    /// This part of `whole`, if there is one, or all of it.
    pub(crate) fn or_whole(part: Option<&Self>, whole: AnyTensor) -> AnyTensor {
        match part {
            Some(part) => part.of_any(whole),
            None => whole,
        }
    }

    /// Adds `term` to this part of `sum`, in the buffer of the sum if nobody else has it.
    pub(crate) fn add_to<const D: usize>(&self, sum: Tensor<D>, term: Tensor<D>) -> Tensor<D> {
        let part = self.of(sum.clone()).add(term);
        let sizes = sum.dims();
        let place: [Range<usize>; D] = from_fn(|dim| match dim == self.dim {
            true => self.range.clone(),
            false => 0..sizes[dim],
        });
        sum.slice_assign(place, part)
    }
}
