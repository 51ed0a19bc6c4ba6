use super::super::format::Noise;
use super::super::rule::Rule;

/// A step of a weight and its states in formats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupStep {
    pub(crate) update: GroupUpdate,
    pub(crate) noise: Noise,
}

/// What becomes of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GroupUpdate {
    /// The rule is applied, with a gradient.
    Rule(Rule),
    /// It gets new numbers, in f32, which come in the place of a gradient.
    Set,
}
