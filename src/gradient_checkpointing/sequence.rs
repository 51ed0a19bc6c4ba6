use std::ops::Range;

use burn::tensor::Tensor;
use burn::tensor::kind::Basic;

use super::activations::{Activations, FloatMap};
use super::constant::Constant;

/// What [`gradient_checkpointing_tiled`](crate::gradient_checkpointing_tiled) cuts into tiles: tensors with as many entries along
/// the dimension of the sequence as there are tokens, and tuples of them. Every tile gets a [`Whole`] or a
/// [`Constant`] as it is.
pub trait Sequence: Activations {
    /// The number of tokens along `dim`, if there are any to cut.
    #[doc(hidden)]
    fn tokens(&self, dim: usize) -> Option<usize>;

    /// The tokens in a range.
    #[doc(hidden)]
    fn tile(&self, dim: usize, range: Range<usize>) -> Self;

    /// All tiles, of which there is one at least, behind one another.
    #[doc(hidden)]
    fn joined(tiles: Vec<Self>, dim: usize) -> Self;
}

/// An input that every tile of a sequence gets whole: the keys and values that queries look at, say. Its gradient is the sum over
/// the tiles.
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
            "a tensor of shape {:?} has no dimension {dim}, along which a sequence was to be cut into tiles: pass it as a `Whole`",
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
    ($($name:ident: $bound:path),*) => {
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
                tiles.pop().expect("there is a tile at least")
            }
        })*
    };
}

same_for_all_tiles!(Whole: Activations, Constant: Clone);

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

/// The number of tokens of two parts of a sequence.
fn same(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    if let (Some(one), Some(other)) = (one, other) {
        assert!(
            one == other,
            "the inputs of tiles have {one} and {other} tokens: cut those of one length, and pass the others as `Whole`"
        );
    }
    one.or(other)
}
