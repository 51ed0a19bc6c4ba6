//! A step on the processor of what it does not compute in: elements are read into numbers in f32, a block at a time, updated, and
//! written again.

use std::array::from_fn;

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, DispatchDevice, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, TensorData, read_sync};

use super::super::format::{Column, Dither, GROUP, Kept, WeightFormat};
use super::gradient::Gradient;
use super::single_pass::{Operands, Stored};
use super::{BLOCK, Update, on_threads};

/// Opens the operands, passes over them, and closes them again: where a buffer has one owner and the backend's tensors are
/// in the memory of this process, in place.
pub(super) fn update(
    update: &Update,
    gradient: &Gradient<'_>,
    operands: Operands<Dispatch>,
) -> Operands<Dispatch> {
    let format = update.formats.unzip().0.unwrap_or(WeightFormat::Plain);
    let open = |stored| Open::of(stored, format);
    let mut open: Vec<_> = operands.all().map(open).collect();
    match open.len() {
        1 => pass::<1>(update, &mut open, gradient),
        2 => pass::<2>(update, &mut open, gradient),
        3 => pass::<3>(update, &mut open, gradient),
        _ => pass::<4>(update, &mut open, gradient),
    }
    Operands::new(open.into_iter().map(Open::closed))
}

/// An operand that can be written.
struct Open {
    device: DispatchDevice,
    kept: Kept,
    floats: Parts,
    words: Option<Parts>,
}

/// The bytes of a tensor, its shape and type.
type Parts = (Bytes, Shape, DType);

impl Open {
    /// `format` is that of the weight, which alone is in bf16 then: full states beside it are in f32.
    fn of(stored: Stored<Dispatch>, format: WeightFormat) -> Self {
        let (floats, words, kept) = match stored {
            Stored::Floats(floats) => {
                let kept = match floats.dtype() {
                    DType::BF16 if format == WeightFormat::Stochastic => Kept::Weights(format),
                    dtype => Kept::Floats(dtype),
                };
                (floats, None, kept)
            }
            Stored::Split(floats, words) => (floats, Some(words), Kept::Weights(format)),
            Stored::Codes(floats, words, coding) => (floats, Some(words), Kept::Codes(coding)),
            Stored::Nothing => unreachable!("an operand is there"),
        };
        let read = |data: Result<TensorData, _>| data.expect("an operand can be read").into_parts();
        Self {
            device: floats.device(),
            kept,
            floats: read(read_sync(Dispatch::float_into_data(floats))),
            words: words.map(|words| read(read_sync(Dispatch::int_into_data(words)))),
        }
    }

    fn column(&mut self) -> Column<'_> {
        let words = self.words.as_mut();
        let words = words.map(|words| bytemuck::cast_slice_mut(&mut words.0));
        Column::new(self.kept, &mut self.floats.0, words.unwrap_or_default())
    }

    fn closed(self) -> Stored<Dispatch> {
        let data = |(bytes, shape, dtype)| TensorData::from_bytes(bytes, shape, dtype);
        let floats = Dispatch::float_from_data(data(self.floats), &self.device);
        let words = self
            .words
            .map(|words| Dispatch::int_from_data(data(words), &self.device));
        match (words, self.kept) {
            (None, _) => Stored::Floats(floats),
            (Some(words), Kept::Codes(coding)) => Stored::Codes(floats, words, coding),
            (Some(words), _) => Stored::Split(floats, words),
        }
    }
}

/// Updates a weight and its states.
fn pass<const COLUMNS: usize>(update: &Update, open: &mut [Open], gradient: &Gradient<'_>) {
    let length = open[0].floats.1.num_elements();
    let mut columns = open.iter_mut().map(Open::column);
    let all = Range::<COLUMNS> {
        start: 0,
        length,
        columns: from_fn(|_| columns.next().expect("there are as many")),
    };
    let each = |range: Range<'_, COLUMNS>| range.update(update, gradient);
    on_threads(length, all, Range::take, &each);
}

/// A range of elements.
struct Range<'a, const COLUMNS: usize> {
    /// The index of the first.
    start: usize,
    length: usize,
    /// The weight, then its states.
    columns: [Column<'a>; COLUMNS],
}

impl<const COLUMNS: usize> Range<'_, COLUMNS> {
    /// Takes off so many elements: whole groups, or all.
    fn take(&mut self, length: usize) -> Self {
        let (start, groups) = (self.start, length.div_ceil(GROUP));
        self.start += length;
        self.length -= length;
        Self {
            start,
            length,
            columns: self.columns.each_mut().map(|column| column.take(groups)),
        }
    }

    /// Updates them, block by block. (Not inlined, so that what splits has no room on the stack.)
    #[inline(never)]
    fn update(mut self, update: &Update, gradient: &Gradient<'_>) {
        let (mut room, mut random) = ([0.0; BLOCK], [0; BLOCK]);
        let mut rooms = [[0.0; BLOCK]; COLUMNS];
        while self.length > 0 {
            let mut block = self.take(self.length.min(BLOCK));
            let (length, columns) = (block.length, &mut block.columns);
            let gradients = gradient.open(block.start, length, &mut room);
            let mut broken = [false; BLOCK / GROUP];
            if let Some((_, noise)) = update.formats {
                if columns.iter().any(Column::is_dithered) {
                    noise.fill(block.start, gradients, &mut random);
                }
                for column in &*columns {
                    column.broken(&mut broken);
                }
            }
            let opened = columns.iter_mut().zip(&mut rooms);
            let mut opened = opened.map(|(column, room)| column.open(room, length));
            let mut next = |_| opened.next().unwrap_or_default();
            let weights = next(0);
            update.rule.formula.apply(weights, gradients, from_fn(next));
            for (weights, broken) in weights.chunks_mut(GROUP).zip(broken) {
                if broken {
                    // Lion takes a sign, and NaN has none.
                    weights.fill(f32::NAN);
                }
            }
            let opened = columns.iter_mut().zip(&mut rooms).enumerate();
            // The states first, which takes a little less time.
            for (index, (column, numbers)) in opened.rev() {
                // A weight has other bits than its states, whose number is even for the first.
                column.close(numbers, length, Dither::AtRandom(&random, index + 1));
            }
        }
    }
}
