//! The single pass as an operation of a backend, and its operands.

use std::iter::once;

#[cfg(feature = "cubecl")]
use burn::backend::backend_extension;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType};
use burn::tensor::Tensor;

use super::super::format::{CodeScheme, PackedState, Residual, StateTensor, Weight};
#[cfg(feature = "cubecl")]
use super::Update;

/// The single pass as an operation of a backend that has a kernel.
#[cfg(feature = "cubecl")]
#[backend_extension(Cube: cfg(feature = "cubecl"), Fusion: cfg(feature = "fusion"))]
pub(crate) trait SinglePass: Backend {
    #[fusion(meta = |_gradient, operands, _update| operands.clone())]
    fn update(
        gradient: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        update: Update,
    ) -> Operands<Self>;
}

/// Converts a weight and its states to operands, applies `update`, and converts them back.
pub(super) fn with_operands<const D: usize>(
    weight: Weight<D>,
    states: Vec<StateTensor<D>>,
    update: impl FnOnce(Operands<Dispatch>) -> Operands<Dispatch>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let (shape, format) = (weight.value.shape(), weight.format);
    let value = weight.value.into_dispatch();
    let weight = match weight.residual {
        None => Stored::Floats(value),
        Some(low) => Stored::Split(value, low.words.into_dispatch()),
    };
    let states = states.into_iter().map(|state| match state {
        StateTensor::Full(state) => Stored::Floats(state.into_dispatch()),
        StateTensor::Packed(packed) => {
            let (codes, scales) = (packed.codes.into_dispatch(), packed.scales.into_dispatch());
            Stored::Codes(scales, codes, packed.scheme)
        }
    });
    let mut all = update(Operands::new(once(weight).chain(states))).all();
    let (value, words) = match all.next() {
        Some(Stored::Split(value, words)) => (value, Some(words)),
        Some(Stored::Floats(value)) => (value, None),
        _ => unreachable!("a weight has its elements"),
    };
    let weight = Weight {
        value: Tensor::from_dispatch(value),
        format,
        residual: words.map(|words| Residual {
            words: Tensor::from_dispatch(words),
            elements: shape.num_elements(),
        }),
    };
    let states = all.map(|state| match state {
        Stored::Floats(state) => StateTensor::Full(Tensor::from_dispatch(state)),
        Stored::Codes(scales, codes, scheme) => StateTensor::Packed(PackedState {
            codes: Tensor::from_dispatch(codes),
            scales: Tensor::from_dispatch(scales),
            scheme,
            shape: shape.clone(),
        }),
        Stored::Nothing | Stored::Split(..) => unreachable!("a state is whole"),
    });
    (weight, states.collect())
}

/// Storage of a weight or a state.
#[derive(Clone, Debug, ExtensionType)]
#[allow(clippy::large_enum_variant)] // There are a few to a step.
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum Stored<B: Backend> {
    /// No state.
    Nothing,
    /// Elements in floats.
    Floats(FloatTensor<B>),
    /// A weight in bf16 and its residual.
    Split(FloatTensor<B>, IntTensor<B>),
    /// The scales of a state and its codes.
    Codes(FloatTensor<B>, IntTensor<B>, CodeScheme),
}

/// A weight with its states. An operation of a backend takes no vector of them.
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
    /// Creates operands from a weight and three states at most.
    pub(super) fn new(all: impl IntoIterator<Item = Stored<B>>) -> Self {
        let mut all = all.into_iter();
        let mut next = || all.next().unwrap_or(Stored::Nothing);
        Self {
            weight: next(),
            first: next(),
            second: next(),
            third: next(),
        }
    }

    /// Returns all operands that exist, in the same order.
    pub(super) fn all(self) -> impl Iterator<Item = Stored<B>> {
        let all = [self.weight, self.first, self.second, self.third].into_iter();
        all.filter(|stored| !matches!(stored, Stored::Nothing))
    }
}
