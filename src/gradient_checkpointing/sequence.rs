use std::ops::Range;

use burn::tensor::Tensor;
use burn::tensor::kind::Basic;

use super::activations::{Activations, FloatMap};
use super::constant::Constant;

/// An input of [`gradient_checkpointing_tiled`](crate::gradient_checkpointing_tiled) that can be split into tiles:
/// tensors with one entry per token along the dimension of the sequence, and tuples of them. Each tile receives a
/// [`Whole`] or a [`Constant`] unchanged. Several tiles can't return a [`Whole`], and the [`Constant`] of the last one is returned.
pub trait Sequence: Activations {
    /// Returns the number of tokens along `dim`; `None` if the input is not split.
    #[doc(hidden)]
    fn tokens(&self, dim: usize) -> Option<usize>;

    /// Returns the tokens in a range.
    #[doc(hidden)]
    fn tile(&self, dim: usize, range: Range<usize>) -> Self;

    /// Concatenates one or more tiles.
    #[doc(hidden)]
    fn joined(tiles: Vec<Self>, dim: usize) -> Self;
}

/// An input that each tile of a sequence receives as a whole, for example the keys and values of attention. Its
/// gradient is the sum over the tiles.
#[derive(Clone, Debug)]
pub struct Whole<T>(pub T);

impl<T: Activations> Activations for Whole<T> {
    fn map_floats(self, map: &mut FloatMap<'_>) -> Self {
        Self(self.0.map_floats(map))
    }
}

impl<const D: usize, K: Basic> Sequence for Tensor<D, K>
where
    Self: Activations,
{
    fn tokens(&self, dim: usize) -> Option<usize> {
        assert!(
            dim < D,
            "a tensor of shape {:?} has no dimension {dim} to split into tiles: pass it as a `Whole`",
            self.dims()
        );
        Some(self.dims()[dim])
    }

    fn tile(&self, dim: usize, range: Range<usize>) -> Self {
        self.clone().slice_dim(dim, range)
    }

    fn joined(tiles: Vec<Self>, dim: usize) -> Self {
        Tensor::cat(tiles, dim)
    }
}

macro_rules! same_for_all_tiles {
    ($($name:ident: $bound:path, $can_be_joined:literal;)*) => {
        $(impl<T: $bound> Sequence for $name<T>
        where
            Self: Activations,
        {
            fn tokens(&self, _dim: usize) -> Option<usize> {
                None
            }

            fn tile(&self, _dim: usize, _range: Range<usize>) -> Self {
                self.clone()
            }

            fn joined(mut tiles: Vec<Self>, _dim: usize) -> Self {
                assert!(
                    $can_be_joined || tiles.len() == 1,
                    "each tile returned a `{}`, which can't be joined: return a tensor with one entry per token",
                    stringify!($name)
                );
                tiles.pop().expect("there is at least one tile")
            }
        })*
    };
}

same_for_all_tiles!(Whole: Activations, false; Constant: Clone, true;);

macro_rules! tuples {
    ($(($first:ident $($name:ident)*))*) => {
        $(#[allow(non_snake_case)]
        impl<$first: Sequence, $($name: Sequence),*> Sequence for ($first, $($name,)*) {
            fn tokens(&self, dim: usize) -> Option<usize> {
                let ($first, $($name,)*) = self;
                let tokens = $first.tokens(dim);
                $(let tokens = same(tokens, $name.tokens(dim));)*
                tokens
            }

            fn tile(&self, dim: usize, range: Range<usize>) -> Self {
                let ($first, $($name,)*) = self;
                ($first.tile(dim, range.clone()), $($name.tile(dim, range.clone()),)*)
            }

            fn joined(tiles: Vec<Self>, dim: usize) -> Self {
                let ($first, $($name,)*): (Vec<$first>, $(Vec<$name>,)*) = tiles.into_iter().collect();
                (Sequence::joined($first, dim), $(Sequence::joined($name, dim),)*)
            }
        })*
    };
}

tuples!((A B) (A B C) (A B C D));

/// Returns the common number of tokens of two inputs.
fn same(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    if let (Some(one), Some(other)) = (one, other) {
        assert!(
            one == other,
            "the inputs of tiles have {one} and {other} tokens: pass inputs of equal length, and the others as `Whole`"
        );
    }
    one.or(other)
}
