use super::super::format::Noise;
use super::rule::Rule;

/// A step of a weight and its states in formats.
#[derive(Clone, Debug)]
pub(crate) struct GroupStep {
    pub(crate) rule: Rule,
    pub(crate) noise: Noise,
}
