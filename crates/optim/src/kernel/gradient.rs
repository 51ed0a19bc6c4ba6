#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::tensor::{DType, Tensor};
use bytemuck::{Pod, cast_slice};

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
    view: Option<View<'a>>,
}

/// Shape and strides of elements that are not contiguous.
struct View<'a> {
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

    /// Returns `true` if any number of elements is [opened](Self::open) in place.
    pub(super) fn is_in_place(&self) -> bool {
        self.dtype == DType::F32 && self.view.is_none()
    }

    /// Returns `length` elements from `start` on in f32: in place, or in `numbers`, which holds a block.
    pub(super) fn open<'s>(
        &'s self,
        start: usize,
        length: usize,
        numbers: &'s mut [f32; BLOCK],
    ) -> &'s [f32] {
        let size = self.dtype.size();
        let bytes = || &self.bytes[(self.offset + start) * size..][..length * size];
        if self.is_in_place() {
            return cast_slice(bytes());
        }
        let numbers = &mut numbers[..length];
        match &self.view {
            None => vectorized(Widen(self.dtype, bytes(), numbers)),
            Some(view) if self.dtype == DType::F32 => self.gather(view, start, numbers),
            Some(view) => {
                let halves = &mut [0_u16; BLOCK][..length];
                self.gather(view, start, halves);
                vectorized(Widen(self.dtype, cast_slice(halves), numbers));
            }
        }
        numbers
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
