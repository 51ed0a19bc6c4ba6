use crate::error::FusedError;
use crate::memory::MemoryError;
use crate::parameters::ModelKey;

/// An error in making or following a plan.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget is zero.
    #[error("the budget is 0 bytes: pass the number of bytes that the training may take")]
    NoBudget,

    /// The text of a budget can't be parsed.
    #[error("`{text}` is not a number of bytes: write it as 6GB, 500MB, 1.5GiB or 6000000000")]
    UnreadableBudget {
        /// The text.
        text: String,
    },

    /// The memory of the machine, or of a device, is unknown.
    #[error("the size of the memory is unknown: {reason}. Pass the number with `Budget::Bytes`")]
    UnknownMachine {
        /// The cause.
        reason: String,
    },

    /// The batch is zero.
    #[error("the batch has 0 items: set their number with `with_batch`")]
    NoBatch,

    /// No candidate fits the budget.
    #[error(
        "the training does not fit {budget} bytes: it takes about {least}, {missing} more. {advice}",
        missing = least.saturating_sub(*budget)
    )]
    NothingFits {
        /// The bytes of the budget.
        budget: usize,
        /// Approximate peak bytes of the smallest candidate, or of the measurement if no pass was completed.
        least: usize,
        /// Options that would help.
        advice: String,
    },

    /// The plan was made for another model.
    #[error(
        "the plan is for a model of {planned}, and this one has {found}: plan again with this model"
    )]
    AnotherModel {
        /// The model of the plan.
        planned: ModelKey,
        /// The model passed to the plan.
        found: ModelKey,
    },

    /// The plan was edited, and is invalid.
    #[error("the plan can't be followed: {reason}")]
    Unusable {
        /// The cause, and what to do.
        reason: String,
    },

    /// Memory can't be measured.
    #[error(transparent)]
    Memory(#[from] MemoryError),

    /// The model can't be trained.
    #[error(transparent)]
    Fused(#[from] FusedError),
}

backburn_base::debug_prints_message!(PlanError);
