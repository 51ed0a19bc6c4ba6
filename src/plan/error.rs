use backburn_base::ModelKey;
use backburn_memory::MemoryError;

use crate::error::FusedError;

/// An error in creating or applying a plan.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget or the batch is invalid, or the plan was edited and is invalid.
    #[error("{reason}")]
    Invalid {
        /// The cause, and what to do.
        reason: String,
    },

    /// No candidate fits the budget.
    #[error(
        "the training does not fit {budget} bytes: {}, {missing} more. {advice}",
        if *is_enough { format!("a budget of {least} bytes is enough") } else { format!("it takes about {least}") },
        missing = least.saturating_sub(*budget)
    )]
    NothingFits {
        /// The bytes of the budget.
        budget: usize,
        /// A larger budget, in bytes.
        least: usize,
        /// `true` if a plan fits the budget `least`. `false` if it could exceed the memory of the machine or of the device, so that it was
        /// not tried: `least` is then the expected peak of the smallest candidate.
        is_enough: bool,
        /// Options that would help.
        advice: String,
    },

    /// The plan was made for another model.
    #[error(
        "the plan is for a model of {planned}, but this model has {found}: call `Planner::plan` for this model"
    )]
    AnotherModel {
        /// The model of the plan.
        planned: ModelKey,
        /// The model passed to the plan.
        found: ModelKey,
    },

    /// Memory can't be measured.
    #[error(transparent)]
    Memory(#[from] MemoryError),

    /// The model can't be trained.
    #[error(transparent)]
    Fused(#[from] FusedError),
}

backburn_base::debug_prints_message!(PlanError);

impl PlanError {
    pub(super) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid {
            reason: reason.into(),
        }
    }
}
