use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

use super::super::format::{Noise, WeightFormat};
use super::operands::Operands;
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
