//! The step on the processor: a block of elements is read into f32, updated and written back. Operands in f32 are updated in
//! place.

use std::array::from_fn;

#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, DispatchDevice, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, Tensor, TensorData, read_sync};
use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::super::format::{Dither, ElementBuffer, ElementEncoding, GROUP, WeightFormat, Widen};
use super::super::rule::{Formula, MOST_STATES, vectorized};
use super::Update;
use super::single_pass::Stored;

/// Opens the operands, updates them, and closes them. Works in place where a buffer has one owner and the backend's tensors are
/// in the memory of this process.
pub(super) fn update<const D: usize>(
    update: &Update,
    gradient: Tensor<D>,
    operands: Vec<Stored<Dispatch>>,
) -> Vec<Stored<Dispatch>> {
    let format = update.formats.unzip().0.unwrap_or(WeightFormat::Plain);
    Gradient::with(gradient, |gradient| {
        let open = |stored| Open::of(stored, format);
        let mut open: Vec<_> = operands.into_iter().map(open).collect();
        // Without formats all operands have the type of the gradient.
        if gradient.is_in_place && update.formats.is_none() {
            let numbers = open.iter_mut().map(|open| &mut open.floats.0);
            let mut numbers = numbers.map(|floats| cast_slice_mut::<u8, f32>(floats));
            let mut next = |_| numbers.next().unwrap_or_default();
            let weights = next(0);
            let gradients = &cast_slice(gradient.bytes)[gradient.offset..][..weights.len()];
            in_place(&*update.rule.formula, weights, gradients, from_fn(next));
            return open.into_iter().map(Open::closed).collect();
        }
        let length = open[0].floats.1.num_elements();
        let mut buffers = open.iter_mut().map(|open| {
            let words = open.words.as_mut();
            let words = words.map(|words| cast_slice_mut(&mut words.0));
            ElementBuffer::new(open.encoding, &mut open.floats.0, words.unwrap_or_default())
        });
        let unused = || {
            // Aligned, because it is cast to f32.
            let floats = cast_slice_mut::<f32, u8>(&mut []);
            ElementBuffer::new(ElementEncoding::Floats(DType::F32), floats, &mut [])
        };
        let all = Range {
            start: 0,
            length,
            buffers: from_fn(|_| buffers.next().unwrap_or_else(unused)),
        };
        all.run(update, gradient);
        open.into_iter().map(Open::closed).collect()
    })
}

/// Updates numbers in place, on several threads if there are many. A state that the rule does not use is empty.
fn in_place(
    formula: &dyn Formula,
    weights: &mut [f32],
    gradients: &[f32],
    states: [&mut [f32]; MOST_STATES],
) {
    if weights.len() <= GRAIN {
        return formula.apply(weights, gradients, states);
    }
    let half = (weights.len() / 2).next_multiple_of(GROUP);
    let (weights, other_weights) = weights.split_at_mut(half);
    let (gradients, other_gradients) = gradients.split_at(half);
    let [first, second, third] = states.map(|state| state.split_at_mut(half.min(state.len())));
    rayon::join(
        || in_place(formula, weights, gradients, [first.0, second.0, third.0]),
        || {
            let states = [first.1, second.1, third.1];
            in_place(formula, other_weights, other_gradients, states)
        },
    );
}

/// An operand that is open for writing.
struct Open {
    device: DispatchDevice,
    encoding: ElementEncoding,
    floats: Parts,
    words: Option<Parts>,
}

/// The bytes of a tensor, its shape and type.
type Parts = (Bytes, Shape, DType);

impl Open {
    /// Opens an operand. `format` is the format of the weight. With one, only the weight can be in bf16.
    fn of(stored: Stored<Dispatch>, format: WeightFormat) -> Self {
        let (floats, words, encoding) = match stored {
            Stored::Floats(floats) => {
                let encoding = match floats.dtype() {
                    DType::BF16 if format == WeightFormat::Stochastic => {
                        ElementEncoding::Weights(format)
                    }
                    dtype => ElementEncoding::Floats(dtype),
                };
                (floats, None, encoding)
            }
            Stored::Split(floats, words) => (floats, Some(words), ElementEncoding::Weights(format)),
            Stored::Codes(floats, words, scheme) => {
                (floats, Some(words), ElementEncoding::Codes(scheme))
            }
            #[cfg(feature = "cubecl")]
            Stored::Nothing => unreachable!("an operand is there"),
        };
        let read = |data: Result<TensorData, _>| data.expect("an operand can be read").into_parts();
        Self {
            device: floats.device(),
            encoding,
            floats: read(read_sync(Dispatch::float_into_data(floats))),
            words: words.map(|words| read(read_sync(Dispatch::int_into_data(words)))),
        }
    }

    fn closed(self) -> Stored<Dispatch> {
        let data = |(bytes, shape, dtype)| TensorData::from_bytes(bytes, shape, dtype);
        let floats = Dispatch::float_from_data(data(self.floats), &self.device);
        let words = self
            .words
            .map(|words| Dispatch::int_from_data(data(words), &self.device));
        match (words, self.encoding) {
            (None, _) => Stored::Floats(floats),
            (Some(words), ElementEncoding::Codes(scheme)) => Stored::Codes(floats, words, scheme),
            (Some(words), _) => Stored::Split(floats, words),
        }
    }
}

/// Elements of a block, which fits the first-level cache. Small, so that the processor prefetches the next block during the
/// computation.
const BLOCK: usize = 8 * GROUP;
/// Number of elements that justify a thread.
const GRAIN: usize = 64 * BLOCK;
/// A weight and its states.
const BUFFERS: usize = 1 + MOST_STATES;

/// A range of elements.
struct Range<'a> {
    /// Index of the first element.
    start: usize,
    length: usize,
    /// The weight, then its states. The others are empty.
    buffers: [ElementBuffer<'a>; BUFFERS],
}

impl Range<'_> {
    /// Splits off `length` elements: whole groups, or all.
    fn take(&mut self, length: usize) -> Self {
        let (start, groups) = (self.start, length.div_ceil(GROUP));
        self.start += length;
        self.length -= length;
        Self {
            start,
            length,
            buffers: self.buffers.each_mut().map(|buffer| buffer.take(groups)),
        }
    }

    /// Updates the range, on several threads if it is long.
    fn run(mut self, update: &Update, gradient: &Gradient<'_>) {
        if self.length <= GRAIN {
            return self.run_here(update, gradient);
        }
        let first = self.take((self.length / 2).next_multiple_of(GROUP));
        rayon::join(
            || first.run(update, gradient),
            || self.run(update, gradient),
        );
    }

    /// Updates the range on this thread, block by block. Not inlined, so that the recursion has a small stack frame.
    #[inline(never)]
    fn run_here(mut self, update: &Update, gradient: &Gradient<'_>) {
        let (mut room, mut random) = ([0.0; BLOCK], [0; BLOCK]);
        let mut rooms = [[0.0; BLOCK]; BUFFERS];
        while self.length > 0 {
            let mut block = self.take(self.length.min(BLOCK));
            let (length, buffers) = (block.length, &mut block.buffers);
            let gradients = gradient.open(block.start, length, &mut room);
            let mut broken = [false; BLOCK / GROUP];
            if let Some((_, noise)) = update.formats {
                if buffers.iter().any(ElementBuffer::is_dithered) {
                    noise.fill(block.start, gradients, &mut random);
                }
                for buffer in &*buffers {
                    buffer.broken(&mut broken);
                }
            }
            let opened = buffers.iter_mut().zip(&mut rooms);
            let mut opened = opened.map(|(buffer, room)| buffer.open(room, length));
            let mut next = |_| opened.next().unwrap_or_default();
            let weights = next(0);
            update.rule.formula.apply(weights, gradients, from_fn(next));
            for (weights, broken) in weights.chunks_mut(GROUP).zip(broken) {
                if broken {
                    // Lion takes a sign, and NaN has none.
                    weights.fill(f32::NAN);
                }
            }
            let opened = buffers.iter_mut().zip(&mut rooms).enumerate();
            // Closing the states first is slightly faster.
            for (index, (buffer, numbers)) in opened.rev() {
                // The weight and the states have different random bits. The number of the first state is even.
                buffer.close(numbers, length, Dither::AtRandom(&random, index + 1));
            }
        }
    }
}

/// A gradient in the memory of the process.
struct Gradient<'a> {
    dtype: DType,
    bytes: &'a [u8],
    /// Offset of the first element.
    offset: usize,
    /// `None` if the elements are contiguous.
    view: Option<View<'a>>,
    /// `true` if any number of elements is [opened](Self::open) in place.
    is_in_place: bool,
}

/// Shape and strides of elements that are not contiguous.
#[cfg_attr(not(feature = "flex"), allow(dead_code))] // Only tensors of `flex` are read through a view.
struct View<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
}

impl Gradient<'_> {
    /// Calls `work` with the gradient: in place where possible, also for a view, or else with a copy.
    fn with<const D: usize, R>(tensor: Tensor<D>, work: impl FnOnce(&Gradient<'_>) -> R) -> R {
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
                is_in_place: layout.is_contiguous() && tensor.dtype() == DType::F32,
            });
        }
        let data = tensor.into_data();
        work(&Gradient {
            dtype: data.dtype(),
            bytes: data.as_bytes(),
            offset: 0,
            view: None,
            is_in_place: data.dtype() == DType::F32,
        })
    }

    /// Returns `length` elements from `start` on in f32: in place, or in `numbers`, which holds a block.
    fn open<'s>(&'s self, start: usize, length: usize, numbers: &'s mut [f32; BLOCK]) -> &'s [f32] {
        let size = self.dtype.size();
        let bytes = || &self.bytes[(self.offset + start) * size..][..length * size];
        if self.is_in_place {
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
