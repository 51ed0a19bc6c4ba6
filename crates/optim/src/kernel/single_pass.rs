//! The single pass as an operation of a backend, and its operands.

#[cfg(feature = "cubecl")]
use burn::backend::backend_extension;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType};

use super::super::format::CodeScheme;
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

/// Storage of a weight or a state.
#[derive(Clone, Debug, ExtensionType)]
#[allow(clippy::large_enum_variant)] // There are a few to a step.
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum Stored<B: Backend> {
    /// No state.
    #[cfg(feature = "cubecl")]
    Nothing,
    /// Elements in floats.
    Floats(FloatTensor<B>),
    /// A weight in bf16 and its residual.
    Split(FloatTensor<B>, IntTensor<B>),
    /// The scales of a state and its codes.
    Codes(FloatTensor<B>, IntTensor<B>, CodeScheme),
}

/// A weight with its states. An operation of a backend takes no vector of them.
#[cfg(feature = "cubecl")]
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

#[cfg(feature = "cubecl")]
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
