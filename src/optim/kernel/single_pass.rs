//! The single pass as an operation of a backend.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::Tensor;

use super::super::format::{
    Coding, LowBits, Noise, PackedState, StateTensor, Weight, WeightFormat,
};
use super::rule::Rule;

/// What a step does with every element.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(super) rule: Rule,
    /// How the weight is kept, and rounded. Without it all operands are in floats of one type, and the step is computed in
    /// that, or in f32 if it is half of it; with it, in f32 whatever they are.
    pub(super) formats: Option<(WeightFormat, Noise)>,
}

/// The single pass as an operation of a backend.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    Remote: cfg(feature = "remote"),
    Fusion: cfg(feature = "fusion")
)]
pub(crate) trait SinglePass: Backend {
    #[fusion(meta = |_gradient, operands, _update| operands.clone())]
    fn update(
        gradient: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        update: Update,
    ) -> Operands<Self>;
}

#[cfg(feature = "flex")]
impl SinglePass for burn::backend::Flex {
    fn update(
        gradient: FloatTensor<Self>,
        operands: Operands<Self>,
        update: Update,
    ) -> Operands<Self> {
        super::host::update(
            update,
            super::gradient::Gradient::of_flex(&gradient),
            operands,
        )
    }
}

#[cfg(feature = "cubecl")]
impl SinglePass for burn_cubecl::CubeBackend {
    fn update(
        gradient: FloatTensor<Self>,
        operands: Operands<Self>,
        update: Update,
    ) -> Operands<Self> {
        super::cube::update(update, gradient, operands)
    }
}

/// How a weight or a state is kept.
#[derive(Clone, Debug, ExtensionType)]
#[allow(clippy::large_enum_variant)] // There are a few to a step.
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum Stored<B: Backend> {
    /// There is no such state.
    Nothing,
    /// Elements in floats.
    Floats(FloatTensor<B>),
    /// A weight in bf16, and what it lacks.
    Split(FloatTensor<B>, IntTensor<B>),
    /// The scales of a state, and its codes.
    Codes(FloatTensor<B>, IntTensor<B>, Coding),
}

/// A weight with its states. (An operation of a backend takes no vector of them.)
#[derive(Clone, Debug, ExtensionType)]
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) struct Operands<B: Backend> {
    #[extension_type]
    weight: Stored<B>,
    #[extension_type]
    first: Stored<B>,
    #[extension_type]
    second: Stored<B>,
    #[extension_type]
    third: Stored<B>,
}

impl<B: Backend> Operands<B> {
    /// Three states at most.
    pub(super) fn new(weight: Stored<B>, states: impl IntoIterator<Item = Stored<B>>) -> Self {
        let mut states = states.into_iter();
        let mut next = || states.next().unwrap_or(Stored::Nothing);
        Self {
            weight,
            first: next(),
            second: next(),
            third: next(),
        }
    }

    pub(super) fn into_parts(self) -> (Stored<B>, Vec<Stored<B>>) {
        let states = [self.first, self.second, self.third].into_iter();
        let states = states.filter(|state| !matches!(state, Stored::Nothing));
        (self.weight, states.collect())
    }

    /// Those of a step without formats.
    #[cfg(any(feature = "cubecl", feature = "remote"))]
    pub(super) fn of_floats(weight: FloatTensor<B>, states: Vec<FloatTensor<B>>) -> Self {
        Self::new(
            Stored::Floats(weight),
            states.into_iter().map(Stored::Floats),
        )
    }

    /// Those of a step without formats.
    #[cfg(any(feature = "cubecl", feature = "remote"))]
    pub(super) fn into_floats(self) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let floats = |stored| match stored {
            Stored::Floats(floats) => floats,
            _ => unreachable!("without formats there are floats alone"),
        };
        let (weight, states) = self.into_parts();
        (floats(weight), states.into_iter().map(floats).collect())
    }
}

impl Operands<Dispatch> {
    pub(super) fn of<const D: usize>(weight: Weight<D>, states: Vec<StateTensor<D>>) -> Self {
        let value = weight.value.into_dispatch();
        let weight = match weight.low_bits {
            None => Stored::Floats(value),
            Some(low) => Stored::Split(value, low.words.into_dispatch()),
        };
        let states = states.into_iter().map(|state| match state {
            StateTensor::Full(state) => Stored::Floats(state.into_dispatch()),
            StateTensor::Packed(packed) => {
                let (codes, scales) = (packed.codes.into_dispatch(), packed.scales.into_dispatch());
                Stored::Codes(scales, codes, packed.coding)
            }
        });
        Self::new(weight, states)
    }

    /// The weight in this format, and its states.
    pub(super) fn into_tensors<const D: usize>(
        self,
        format: WeightFormat,
    ) -> (Weight<D>, Vec<StateTensor<D>>) {
        let (weight, states) = self.into_parts();
        let (value, words) = match weight {
            Stored::Split(value, words) => (value, Some(words)),
            Stored::Floats(value) => (value, None),
            Stored::Nothing | Stored::Codes(..) => unreachable!("a weight has its elements"),
        };
        let value = Tensor::<D>::from_dispatch(value);
        let shape = value.shape();
        let low_bits = words.map(|words| LowBits {
            words: Tensor::from_dispatch(words),
            format,
            elements: shape.num_elements(),
            is_loaded: false,
        });
        let states = states.into_iter().map(|state| match state {
            Stored::Floats(state) => StateTensor::Full(Tensor::from_dispatch(state)),
            Stored::Codes(scales, codes, coding) => StateTensor::Packed(PackedState {
                codes: Tensor::from_dispatch(codes),
                scales: Tensor::from_dispatch(scales),
                coding,
                shape: shape.clone(),
            }),
            Stored::Nothing | Stored::Split(..) => unreachable!("a state is whole"),
        });
        let states = states.collect();
        let weight = Weight {
            value,
            format,
            low_bits,
        };
        (weight, states)
    }
}
