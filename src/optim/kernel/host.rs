//! A step on the processor.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::tensor::{Bytes, DType, Device, Int, Shape, Tensor, TensorData};

use super::super::format::{
    Coding, Column, Kept, LowBits, Noise, PackedState, StateTensor, Weight, WeightFormat,
};
use super::gradient::Gradient;
use super::group_step::GroupStep;
use super::pass::Pass;
use super::rule::Rule;

/// Opens the operands, passes over them, and closes them again: in place on `flex` where a buffer has one owner.
pub(super) fn update<const D: usize>(
    step: GroupStep,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let (format, device) = (weight.format, weight.value.device());
    let dtype = weight.value.dtype();
    let shape = weight.value.shape();
    let kept = match (dtype, format) {
        (_, WeightFormat::Plain) | (DType::F32 | DType::F16, _) => Kept::Floats(dtype),
        _ => Kept::Weights(format),
    };
    let words = weight.low_bits.map(|low| low.words);
    let mut open = Open::of(weight.value, words, kept);
    let states = states.into_iter().map(|state| match state {
        StateTensor::Full(state) => {
            let dtype = state.dtype();
            Open::of(state, None, Kept::Floats(dtype))
        }
        StateTensor::Packed(packed) => {
            let kept = Kept::Codes(packed.coding);
            Open::of(packed.scales, Some(packed.codes), kept)
        }
    });
    let mut states: Vec<Open> = states.collect();
    with_gradient(gradient, |gradient| {
        run(&step.rule, &mut open, &mut states, gradient, step.noise);
    });
    let (value, words) = open.closed(&device);
    let low_bits = words.map(|words| LowBits {
        words,
        format,
        elements: shape.num_elements(),
        is_loaded: false,
    });
    let states = states.into_iter().map(|state| match state.kept {
        Kept::Codes(coding) => packed(state, coding, &shape, &device),
        _ => StateTensor::Full(state.closed(&device).0),
    });
    let states = states.collect();
    let weight = Weight {
        value,
        format,
        low_bits,
    };
    (weight, states)
}

fn packed<const D: usize>(
    state: Open,
    coding: Coding,
    shape: &Shape,
    device: &Device,
) -> StateTensor<D> {
    let (scales, codes) = state.closed(device);
    StateTensor::Packed(PackedState {
        codes: codes.expect("it was opened with codes"),
        scales,
        coding,
        shape: shape.clone(),
    })
}

/// The same without formats, of tensors of one type.
#[cfg(feature = "flex")]
pub(super) fn update_on_flex(
    rule: &Rule,
    parameter: FlexTensor,
    gradient: FlexTensor,
    states: Vec<FlexTensor>,
) -> (FlexTensor, Vec<FlexTensor>) {
    let open = |tensor: FlexTensor| {
        let kept = Kept::Floats(tensor.dtype());
        Open::of_data(tensor.into_data(), None, kept)
    };
    let mut parameter = open(parameter);
    let mut states: Vec<Open> = states.into_iter().map(open).collect();
    let gradient = Gradient::of_flex(&gradient);
    run(
        rule,
        &mut parameter,
        &mut states,
        gradient,
        Noise::of_step(0),
    );
    let closed = |open: Open| FlexTensor::from_data(open.floats.closed());
    (closed(parameter), states.into_iter().map(closed).collect())
}

fn run(rule: &Rule, weight: &mut Open, states: &mut [Open], gradient: Gradient<'_>, noise: Noise) {
    rule.run(Pass {
        length: weight.floats.shape.num_elements(),
        weight: weight.column(),
        states: states.iter_mut().map(Open::column).collect(),
        gradient,
        noise,
    });
}

/// As it lies in memory: on `flex` a view is not copied.
fn with_gradient<const D: usize>(gradient: Tensor<D>, run: impl FnOnce(Gradient<'_>)) {
    #[cfg(feature = "flex")]
    {
        use burn::backend::{BackendTensor, DispatchTensorKind};
        let kind = gradient.clone().into_dispatch().kind;
        if let DispatchTensorKind::Flex(BackendTensor::Float(gradient)) = kind {
            return run(Gradient::of_flex(&gradient));
        }
    }
    run(Gradient::of_data(&gradient.into_data()));
}

/// An operand that can be written.
struct Open {
    kept: Kept,
    floats: OpenData,
    words: Option<OpenData>,
}

struct OpenData {
    bytes: Bytes,
    shape: Shape,
    dtype: DType,
}

impl Open {
    fn of<const D: usize>(floats: Tensor<D>, words: Option<Tensor<1, Int>>, kept: Kept) -> Self {
        let words = words.map(Tensor::into_data);
        Self::of_data(floats.into_data(), words, kept)
    }

    fn of_data(floats: TensorData, words: Option<TensorData>, kept: Kept) -> Self {
        Self {
            kept,
            floats: OpenData::of(floats),
            words: words.map(OpenData::of),
        }
    }

    fn column(&mut self) -> Column<'_> {
        let words = self.words.as_mut();
        let words = words.map(|words| bytemuck::cast_slice_mut(&mut words.bytes));
        Column::new(self.kept, &mut self.floats.bytes, words.unwrap_or_default())
    }

    fn closed<const D: usize>(self, device: &Device) -> (Tensor<D>, Option<Tensor<1, Int>>) {
        let dtype = self.floats.dtype;
        let floats = Tensor::from_data(self.floats.closed(), (device, dtype));
        let words = self.words.map(OpenData::closed);
        let words = words.map(|words| Tensor::from_data(words, (device, DType::U32)));
        (floats, words)
    }
}

impl OpenData {
    fn of(data: TensorData) -> Self {
        let (bytes, shape, dtype) = data.into_parts();
        Self {
            bytes,
            shape,
            dtype,
        }
    }

    fn closed(self) -> TensorData {
        TensorData::from_bytes(self.bytes, self.shape, self.dtype)
    }
}
