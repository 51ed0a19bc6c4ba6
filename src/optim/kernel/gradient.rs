use burn::tensor::{DType, Element, TensorData};
use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::super::format::Widen;
use super::super::vectorized::vectorized;
use super::pass::BLOCK;

/// A gradient as it lies in memory.
pub(super) struct Gradient<'a> {
    dtype: DType,
    bytes: &'a [u8],
    /// None if its elements lie one after the other.
    view: Option<View<'a>>,
}

/// Where elements lie.
struct View<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    offset: usize,
}

impl<'a> Gradient<'a> {
    pub(super) fn of_data(data: &'a TensorData) -> Self {
        Self {
            dtype: data.dtype(),
            bytes: data.as_bytes(),
            view: None,
        }
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

    /// Whether they are numbers of this type, one after the other.
    pub(super) fn lies<N: Element>(&self) -> bool {
        self.view.is_none() && self.dtype == N::dtype()
    }

    /// Its elements from the `start`-th on, so many, as numbers of type `N`, f32 unless they are of that type: where they
    /// lie, or in `numbers`, which has room for a block.
    pub(super) fn open<'s, N: Element + Pod>(
        &'s self,
        start: usize,
        length: usize,
        numbers: &'s mut [N; BLOCK],
    ) -> &'s [N] {
        let size = self.dtype.size();
        let bytes = || &self.bytes[start * size..(start + length) * size];
        if self.lies::<N>() {
            return cast_slice(bytes());
        }
        let numbers = &mut numbers[..length];
        match &self.view {
            None => widen(self.dtype, bytes(), numbers),
            Some(view) if self.dtype == N::dtype() => {
                view.gather(cast_slice(self.bytes), start, numbers)
            }
            Some(view) => {
                let mut halves = [0_u16; BLOCK];
                let halves = &mut halves[..numbers.len()];
                view.gather(cast_slice(self.bytes), start, halves);
                widen(self.dtype, cast_slice(halves), numbers);
            }
        }
        numbers
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
