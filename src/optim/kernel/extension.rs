use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};

use super::rule::Rule;

/// What a step writes: the parameter and the states of its optimizer.
#[derive(Clone, Debug, ExtensionType)]
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum Operands<B: Backend> {
    Stateless(FloatTensor<B>),
    One(FloatTensor<B>, FloatTensor<B>),
    Two(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    Three(
        FloatTensor<B>,
        FloatTensor<B>,
        FloatTensor<B>,
        FloatTensor<B>,
    ),
}

impl<B: Backend> Operands<B> {
    pub(super) fn new(parameter: FloatTensor<B>, states: Vec<FloatTensor<B>>) -> Self {
        let mut states = states.into_iter();
        match (states.next(), states.next(), states.next()) {
            (None, ..) => Self::Stateless(parameter),
            (Some(a), None, _) => Self::One(parameter, a),
            (Some(a), Some(b), None) => Self::Two(parameter, a, b),
            (Some(a), Some(b), Some(c)) => Self::Three(parameter, a, b, c),
        }
    }

    pub(super) fn into_parts(self) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        match self {
            Self::Stateless(parameter) => (parameter, vec![]),
            Self::One(parameter, a) => (parameter, vec![a]),
            Self::Two(parameter, a, b) => (parameter, vec![a, b]),
            Self::Three(parameter, a, b, c) => (parameter, vec![a, b, c]),
        }
    }
}

/// The single pass as an operation of a backend.
#[backend_extension(
    Cube: cfg(feature = "cubecl"),
    Flex: cfg(feature = "flex"),
    Remote: cfg(feature = "remote"),
    Fusion: cfg(feature = "fusion")
)]
pub(crate) trait SinglePass: Backend {
    /// Applies `rule` to every element.
    #[fusion(meta = |_gradient, operands, _rule| operands.clone())]
    fn update(
        gradient: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        rule: Rule,
    ) -> Operands<Self>;
}

#[cfg(feature = "flex")]
impl SinglePass for burn::backend::Flex {
    fn update(gradient: FloatTensor<Self>, operands: Operands<Self>, rule: Rule) -> Operands<Self> {
        let (parameter, states) = operands.into_parts();
        let (parameter, states) = super::host::update_on_flex(&rule, parameter, gradient, states);
        Operands::new(parameter, states)
    }
}

#[cfg(feature = "cubecl")]
impl SinglePass for burn_cubecl::CubeBackend {
    fn update(gradient: FloatTensor<Self>, operands: Operands<Self>, rule: Rule) -> Operands<Self> {
        let (parameter, states) = operands.into_parts();
        let (parameter, states) = super::cube::update(rule.traced(), parameter, gradient, states);
        Operands::new(parameter, states)
    }
}
