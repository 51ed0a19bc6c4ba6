//! A step on the processor, of tensors of any backend.

use burn::backend::tensor::Device;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, TensorData, read_sync};

use super::super::format::{Column, Kept, WeightFormat};
use super::gradient::Gradient;
use super::pass::Pass;
use super::single_pass::{Operands, Stored, Update};

/// Opens the operands, passes over them, and closes them again: where a buffer has one owner and the backend's tensors are
/// in the memory of this process, in place.
pub(super) fn update<B: Backend>(
    update: Update,
    gradient: Gradient<'_>,
    operands: Operands<B>,
) -> Operands<B> {
    let (weight, states) = operands.into_parts();
    let (format, noise) = update.formats.unzip();
    let format = format.unwrap_or(WeightFormat::Plain);
    let mut weight = Open::of(weight, format);
    let states = states.into_iter();
    let states = states.map(|state| Open::of(state, WeightFormat::Plain));
    let mut states: Vec<Open<B>> = states.collect();
    update.rule.formula.run(Pass {
        length: weight.floats.1.num_elements(),
        weight: weight.column(),
        states: states.iter_mut().map(Open::column).collect(),
        average: update.rule.average,
        gradient,
        noise,
    });
    Operands::new(weight.closed(), states.into_iter().map(Open::closed))
}

/// An operand that can be written.
struct Open<B: Backend> {
    device: Device<B>,
    kept: Kept,
    floats: Parts,
    words: Option<Parts>,
}

/// The bytes of a tensor, its shape and type.
type Parts = (Bytes, Shape, DType);

impl<B: Backend> Open<B> {
    /// `format` is that of a weight.
    fn of(stored: Stored<B>, format: WeightFormat) -> Self {
        let (floats, words, kept) = match stored {
            Stored::Floats(floats)
                if format == WeightFormat::Stochastic && floats.dtype() == DType::BF16 =>
            {
                (floats, None, Kept::Weights(format))
            }
            Stored::Floats(floats) => {
                let dtype = floats.dtype();
                (floats, None, Kept::Floats(dtype))
            }
            Stored::Split(floats, words) => (floats, Some(words), Kept::Weights(format)),
            Stored::Codes(floats, words, coding) => (floats, Some(words), Kept::Codes(coding)),
            Stored::Nothing => unreachable!("an operand is there"),
        };
        let read = |data: Result<TensorData, _>| data.expect("an operand can be read").into_parts();
        Self {
            device: floats.device(),
            kept,
            floats: read(read_sync(B::float_into_data(floats))),
            words: words.map(|words| read(read_sync(B::int_into_data(words)))),
        }
    }

    fn column(&mut self) -> Column<'_> {
        let words = self.words.as_mut();
        let words = words.map(|words| bytemuck::cast_slice_mut(&mut words.0));
        Column::new(self.kept, &mut self.floats.0, words.unwrap_or_default())
    }

    fn closed(self) -> Stored<B> {
        let data = |(bytes, shape, dtype)| TensorData::from_bytes(bytes, shape, dtype);
        let floats = B::float_from_data(data(self.floats), &self.device);
        let words = self
            .words
            .map(|words| B::int_from_data(data(words), &self.device));
        match (words, self.kept) {
            (None, _) => Stored::Floats(floats),
            (Some(words), Kept::Codes(coding)) => Stored::Codes(floats, words, coding),
            (Some(words), _) => Stored::Split(floats, words),
        }
    }
}
