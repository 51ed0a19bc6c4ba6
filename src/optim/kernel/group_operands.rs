use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType};

use super::super::format::Coding;

/// A weight in a format.
#[derive(Clone, Debug, ExtensionType)]
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum GroupWeight<B: Backend> {
    Whole(FloatTensor<B>),
    Split(FloatTensor<B>, IntTensor<B>),
}

/// A state in a format.
#[derive(Clone, Debug, ExtensionType)]
#[allow(clippy::large_enum_variant)] // There is one to a state.
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum GroupState<B: Backend> {
    Full(FloatTensor<B>),
    Packed {
        codes: IntTensor<B>,
        scales: FloatTensor<B>,
        coding: Coding,
    },
}

/// What a step with formats writes.
#[derive(Clone, Debug, ExtensionType)]
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(crate) enum GroupOperands<B: Backend> {
    Stateless(#[extension_type] GroupWeight<B>),
    One(
        #[extension_type] GroupWeight<B>,
        #[extension_type] GroupState<B>,
    ),
    Two(
        #[extension_type] GroupWeight<B>,
        #[extension_type] GroupState<B>,
        #[extension_type] GroupState<B>,
    ),
    Three(
        #[extension_type] GroupWeight<B>,
        #[extension_type] GroupState<B>,
        #[extension_type] GroupState<B>,
        #[extension_type] GroupState<B>,
    ),
}

impl<B: Backend> GroupOperands<B> {
    pub(super) fn new(
        weight: GroupWeight<B>,
        states: impl IntoIterator<Item = GroupState<B>>,
    ) -> Self {
        let mut states = states.into_iter();
        match (states.next(), states.next(), states.next()) {
            (None, ..) => Self::Stateless(weight),
            (Some(a), None, _) => Self::One(weight, a),
            (Some(a), Some(b), None) => Self::Two(weight, a, b),
            (Some(a), Some(b), Some(c)) => Self::Three(weight, a, b, c),
        }
    }

    pub(super) fn into_parts(self) -> (GroupWeight<B>, Vec<GroupState<B>>) {
        match self {
            Self::Stateless(weight) => (weight, vec![]),
            Self::One(weight, a) => (weight, vec![a]),
            Self::Two(weight, a, b) => (weight, vec![a, b]),
            Self::Three(weight, a, b, c) => (weight, vec![a, b, c]),
        }
    }
}
