use crate::error::FusedError;
use crate::memory::MemoryError;
use crate::parameters::ModelKey;

/// Why there is no plan, or why it can't be followed.
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
        /// Why.
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
        /// About the bytes at the peak of the smallest candidate. If no pass ended well, about what measuring one takes.
        least: usize,
        /// What would help.
        advice: String,
    },

    /// A plan that was made for another model.
    #[error(
        "the plan is for a model of {planned}, and this one has {found}: plan again with this model"
    )]
    AnotherModel {
        /// The one that was planned for.
        planned: ModelKey,
        /// The one that was given.
        found: ModelKey,
    },

    /// A plan that was read or edited, and says what can't be.
    #[error("the plan can't be followed: {reason}")]
    Unusable {
        /// What is wrong with it.
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
