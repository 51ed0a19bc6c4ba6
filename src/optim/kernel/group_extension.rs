//! A step with formats on a CubeCL device.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, DispatchTensorKind, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;

use super::super::format::{LowBits, PackedState, StateTensor, Weight, WeightFormat};
use super::cube;
use super::group_operands::{GroupOperands, GroupState, GroupWeight};
use super::group_step::GroupStep;

/// The pass over groups as an operation of a backend.
#[backend_extension(Cube: cfg(feature = "cubecl"), Fusion: cfg(feature = "fusion"))]
pub(crate) trait GroupPass: Backend {
    /// Takes `step` with every group of a weight in `format`.
    #[fusion(meta = |_gradient, operands, _format, _step| operands.clone())]
    fn update_groups(
        gradient: FloatTensor<Self>,
        #[extension_type] operands: GroupOperands<Self>,
        format: WeightFormat,
        step: GroupStep,
    ) -> GroupOperands<Self>;

    /// The trained weights, in f32.
    #[fusion(dtype = burn::tensor::DType::F32, shape = weight.clone())]
    fn join(
        weight: FloatTensor<Self>,
        low: IntTensor<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self>;
}

impl GroupPass for CubeBackend {
    fn update_groups(
        gradient: FloatTensor<Self>,
        operands: GroupOperands<Self>,
        format: WeightFormat,
        step: GroupStep,
    ) -> GroupOperands<Self> {
        cube::update_groups(step, format, gradient, operands)
    }

    fn join(
        weight: FloatTensor<Self>,
        low: IntTensor<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self> {
        cube::join_groups(weight, low, format)
    }
}

/// Whether `tensor` is on a CubeCL device.
pub(super) fn covers<const D: usize>(tensor: &Tensor<D>) -> bool {
    let kind = tensor.clone().into_dispatch().kind;
    matches!(kind, DispatchTensorKind::Cube(_))
}

/// Takes `step` on the device of the operands.
pub(super) fn update<const D: usize>(
    step: GroupStep,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let Weight {
        value,
        format,
        low_bits,
    } = weight;
    let value = value.into_dispatch();
    let weight = match low_bits {
        None => GroupWeight::Whole(value),
        Some(low) => GroupWeight::Split(value, low.words.into_dispatch()),
    };
    let shape = gradient.shape();
    let states = states.into_iter().map(|state| match state {
        StateTensor::Full(state) => GroupState::Full(state.into_dispatch()),
        StateTensor::Packed(packed) => GroupState::Packed {
            codes: packed.codes.into_dispatch(),
            scales: packed.scales.into_dispatch(),
            coding: packed.coding,
        },
    });
    let operands = GroupOperands::new(weight, states);
    let updated = Dispatch::update_groups(gradient.into_dispatch(), operands, format, step);
    let (weight, states) = updated.into_parts();
    let (value, low_bits) = match weight {
        GroupWeight::Whole(value) => (value, None),
        GroupWeight::Split(value, words) => {
            let low = LowBits {
                words: Tensor::from_dispatch(words),
                format,
                elements: shape.num_elements(),
                is_loaded: false,
            };
            (value, Some(low))
        }
    };
    let states = states.into_iter().map(|state| match state {
        GroupState::Full(state) => StateTensor::Full(Tensor::from_dispatch(state)),
        GroupState::Packed {
            codes,
            scales,
            coding,
        } => StateTensor::Packed(PackedState {
            codes: Tensor::from_dispatch(codes),
            scales: Tensor::from_dispatch(scales),
            coding,
            shape: shape.clone(),
        }),
    });
    let weight = Weight {
        value: Tensor::from_dispatch(value),
        format,
        low_bits,
    };
    (weight, states.collect())
}

/// The trained weights, in f32.
pub(super) fn joined<const D: usize>(value: Tensor<D>, low: LowBits) -> Tensor<D> {
    let (value, words) = (value.into_dispatch(), low.words.into_dispatch());
    Tensor::from_dispatch(Dispatch::join(value, words, low.format))
}
