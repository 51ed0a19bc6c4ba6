#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::tensor::{DType, Element, Tensor};
use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::super::format::Widen;
use super::super::vectorized::vectorized;
use super::BLOCK;

/// A gradient in the memory of the process.
pub(super) struct Gradient<'a> {
    dtype: DType,
    bytes: &'a [u8],
    /// Offset of the first element.
    offset: usize,
    /// `None` if the elements are contiguous.
    pub(super) view: Option<View<'a>>,
}

/// Shape and strides of elements that are not contiguous.
pub(super) struct View<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
}

impl Gradient<'_> {
    /// Calls `work` with the gradient: in place where possible, also for a view, or else with a copy.
    pub(super) fn with<const D: usize, R>(
        tensor: Tensor<D>,
        work: impl FnOnce(&Gradient<'_>) -> R,
    ) -> R {
        #[cfg(feature = "flex")]
        if let Ok(tensor) = tensor.clone().try_into_primitive::<Flex>() {
            let layout = tensor.layout();
            let view = || View {
                shape: layout.shape().as_slice(),
                strides: layout.strides(),
            };
            return work(&Gradient {
                dtype: tensor.dtype(),
                bytes: tensor.bytes(),
                offset: layout.start_offset(),
                view: (!layout.is_contiguous()).then(view),
            });
        }
        let data = tensor.into_data();
        work(&Gradient {
            dtype: data.dtype(),
            bytes: data.as_bytes(),
            offset: 0,
            view: None,
        })
    }

    /// Returns `length` elements from `start` on as numbers of type `N`: f32, or the type of the gradient. They are in place,
    /// or in `numbers`, which holds a block.
    pub(super) fn open<'s, N: Element + Pod>(
        &'s self,
        start: usize,
        length: usize,
        numbers: &'s mut [N; BLOCK],
    ) -> &'s [N] {
        let (dtype, size) = (self.dtype, self.dtype.size());
        let are_numbers = dtype == N::dtype();
        let bytes = || &self.bytes[(self.offset + start) * size..][..length * size];
        match &self.view {
            None if are_numbers => return cast_slice(bytes()),
            None => widen(dtype, bytes(), &mut numbers[..length]),
            Some(view) if are_numbers => self.gather(view, start, &mut numbers[..length]),
            Some(view) => {
                let halves = &mut [0_u16; BLOCK][..length];
                self.gather(view, start, halves);
                widen(dtype, cast_slice(halves), &mut numbers[..length]);
            }
        }
        &numbers[..length]
    }

    /// Copies the elements of a view from `start` on, in the order of its shape.
    fn gather<E: Pod>(&self, view: &View<'_>, start: usize, to: &mut [E]) {
        let (storage, View { shape, strides }) = (cast_slice::<u8, E>(self.bytes), view);
        let mut index = vec![0; shape.len()];
        let (mut rest, mut place) = (start, self.offset as isize);
        for dim in (0..index.len()).rev() {
            index[dim] = rest % shape[dim];
            rest /= shape[dim];
            place += index[dim] as isize * strides[dim];
        }
        for element in to {
            *element = storage[place as usize];
            for dim in (0..index.len()).rev() {
                index[dim] += 1;
                place += strides[dim];
                if index[dim] < shape[dim] {
                    break;
                }
                place -= shape[dim] as isize * strides[dim];
                index[dim] = 0;
            }
        }
    }
}

/// Converts half types to f32, in which they are computed.
fn widen<N: Pod>(dtype: DType, bytes: &[u8], numbers: &mut [N]) {
    vectorized(Widen(dtype, bytes, cast_slice_mut(numbers)));
}
