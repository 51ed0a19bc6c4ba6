use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::super::super::rule::Rule;
use super::kernel::VectorRule;
use super::{adam, adamw, lion, sgd};

/// A kernel that applies a rule, with its operands.
pub(super) trait Launch {
    /// A hyperparameter.
    fn scalar(&self, value: f64) -> InputScalar;

    /// Starts the kernel.
    fn start<R: VectorRule>(self, options: RuntimeArg<R::Options>);
}

/// Starts the kernel with `rule`.
pub(super) fn start(rule: Rule, launch: impl Launch) {
    match rule {
        Rule::Adam(rule) => adam::launch(rule, launch),
        Rule::AdamW(rule) => adamw::launch(rule, launch),
        Rule::CautiousAdamW(rule) => adamw::launch(rule, launch),
        Rule::Lion(rule) => lion::launch(rule, launch),
        Rule::Sgd(rule) => sgd::launch(rule, launch),
    }
}
