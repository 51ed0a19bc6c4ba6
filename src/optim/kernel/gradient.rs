#[cfg(feature = "flex")]
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Element, Tensor};
use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::super::format::Widen;
use super::super::vectorized::vectorized;
use super::rule::BLOCK;

/// A gradient as it lies in memory.
pub(super) struct Gradient<'a> {
    dtype: DType,
    bytes: &'a [u8],
    /// None if its elements lie one after the other.
    pub(super) view: Option<View<'a>>,
}

/// Where elements lie.
pub(super) struct View<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    offset: usize,
}

impl<'a> Gradient<'a> {
    /// Lets `work` have a gradient where it lies, or what is read of it.
    pub(super) fn with<const D: usize, R>(
        tensor: Tensor<D>,
        work: impl FnOnce(&Gradient<'_>) -> R,
    ) -> R {
        #[cfg(feature = "flex")]
        if let DispatchTensorKind::Flex(BackendTensor::Float(tensor)) =
            tensor.clone().into_dispatch().kind
        {
            return work(&Gradient::of_flex(&tensor));
        }
        let data = tensor.into_data();
        work(&Gradient {
            dtype: data.dtype(),
            bytes: data.as_bytes(),
            view: None,
        })
    }

    /// A view of something else is not copied.
    #[cfg(feature = "flex")]
    pub(super) fn of_flex(tensor: &'a burn::backend::flex::FlexTensor) -> Self {
        let (dtype, layout, bytes) = (tensor.dtype(), tensor.layout(), tensor.bytes());
        let (bytes, view) = match layout.contiguous_offsets() {
            Some((start, end)) => (&bytes[start * dtype.size()..end * dtype.size()], None),
            None => {
                let view = View {
                    shape: layout.shape().as_slice(),
                    strides: layout.strides(),
                    offset: layout.start_offset(),
                };
                (bytes, Some(view))
            }
        };
        Self { dtype, bytes, view }
    }

    /// Its elements from the `start`-th on, so many, as numbers of type `N`, f32 unless they are of that type: where they
    /// lie, or in `numbers`, which has room for a block.
    pub(super) fn open<'s, N: Element + Pod>(
        &'s self,
        start: usize,
        length: usize,
        numbers: &'s mut [N; BLOCK],
    ) -> &'s [N] {
        let are_numbers = self.dtype == N::dtype();
        let size = self.dtype.size();
        let bytes = || &self.bytes[start * size..(start + length) * size];
        match &self.view {
            None if are_numbers => return cast_slice(bytes()),
            None => widen(self.dtype, bytes(), &mut numbers[..length]),
            Some(view) if are_numbers => {
                view.gather(cast_slice(self.bytes), start, &mut numbers[..length]);
            }
            Some(view) => {
                let mut halves = [0_u16; BLOCK];
                view.gather(cast_slice(self.bytes), start, &mut halves[..length]);
                widen(
                    self.dtype,
                    cast_slice(&halves[..length]),
                    &mut numbers[..length],
                );
            }
        }
        &numbers[..length]
    }
}

/// Half types are computed in f32.
fn widen<N: Pod>(dtype: DType, bytes: &[u8], numbers: &mut [N]) {
    vectorized(Widen(dtype, bytes, cast_slice_mut(numbers)));
}

impl View<'_> {
    /// Copies the elements from the `start`-th on, in the order of the shape.
    fn gather<E: Copy>(&self, storage: &[E], start: usize, to: &mut [E]) {
        let mut index = vec![0; self.shape.len()];
        let (mut rest, mut place) = (start, self.offset as isize);
        for dim in (0..index.len()).rev() {
            index[dim] = rest % self.shape[dim];
            rest /= self.shape[dim];
            place += index[dim] as isize * self.strides[dim];
        }
        for element in to {
            *element = storage[place as usize];
            for dim in (0..index.len()).rev() {
                index[dim] += 1;
                place += self.strides[dim];
                if index[dim] < self.shape[dim] {
                    break;
                }
                place -= self.shape[dim] as isize * self.strides[dim];
                index[dim] = 0;
            }
        }
    }
}
