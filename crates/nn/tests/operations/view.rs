//! Layouts of a tensor in memory.

use std::array::from_fn;

use burn::tensor::Tensor;
use burn::tensor::s;

/// The layout of the inputs of an operation, and of the gradient of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The order of the shape, from the start of a buffer.
    Whole,
    /// The order of the shape, after other rows.
    Later,
    /// A part of each dimension.
    Sliced,
    /// Every second element of the last dimension.
    Stepped,
    /// The reverse order.
    Flipped,
    /// Columns before rows.
    Permuted,
    /// One element of the first dimension in place of all.
    Expanded,
    /// One element of the last dimension in place of all.
    ExpandedLast,
}

impl View {
    /// All but `Whole`.
    pub const OTHERS: [Self; 7] = [
        Self::Later,
        Self::Sliced,
        Self::Stepped,
        Self::Flipped,
        Self::Permuted,
        Self::Expanded,
        Self::ExpandedLast,
    ];

    /// Returns the shape of the tensor that is viewed.
    pub fn viewed(self, shape: &[usize]) -> Vec<usize> {
        let mut viewed = shape.to_vec();
        let last = shape.len() - 1;
        match self {
            Self::Whole | Self::Flipped => {}
            Self::Later => viewed[0] += 1,
            Self::Sliced => viewed.iter_mut().for_each(|size| *size += 2),
            Self::Stepped => viewed[last] *= 2,
            Self::Permuted => viewed.reverse(),
            Self::Expanded => viewed[0] = 1,
            Self::ExpandedLast => viewed[last] = 1,
        }
        viewed
    }

    /// Returns the view of a tensor that has this shape.
    pub fn of<const D: usize>(self, tensor: Tensor<D>, shape: &[usize]) -> Tensor<D> {
        let dims: [usize; D] = from_fn(|dim| dim);
        let narrowed = |it: Tensor<D>, dim: usize| it.narrow(dim, 1, shape[dim]);
        match self {
            Self::Whole => tensor,
            Self::Later => narrowed(tensor, 0),
            Self::Sliced => dims.into_iter().fold(tensor, narrowed),
            Self::Stepped => tensor.slice_dim(D - 1, s![..;2]),
            Self::Flipped => tensor.flip(dims),
            Self::Permuted => tensor.permute(dims.map(|dim| D - 1 - dim)),
            Self::Expanded | Self::ExpandedLast => {
                let shape: [usize; D] = from_fn(|dim| shape[dim]);
                tensor.expand(shape)
            }
        }
    }

    /// Returns a scalar whose gradient by `output` has this layout.
    pub fn sum<const D: usize>(
        self,
        output: Tensor<D>,
        weights: impl Fn(&[usize]) -> Tensor<D>,
    ) -> Tensor<1> {
        let dims: [usize; D] = from_fn(|dim| dim);
        let output = match self {
            Self::Expanded | Self::ExpandedLast => return output.sum() * 0.75,
            Self::Flipped => output.flip(dims),
            Self::Permuted => output.permute(dims.map(|dim| D - 1 - dim)),
            _ => output,
        };
        let weights = weights(&output.dims());
        (output * weights).sum()
    }
}
