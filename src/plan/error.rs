use crate::error::FusedError;
use crate::memory::MemoryError;
use crate::parameters::ModelKey;

/// Why there is no plan, or why it can't be followed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing can be trained in no memory.
    #[error("a budget of 0 bytes holds no training: say how many bytes there are")]
    NoBudget,

    /// A text that is no number of bytes.
    #[error("`{text}` is no number of bytes: write it as 6GB, 500MB, 1.5GiB or 6000000000")]
    UnreadableBudget {
        /// The text.
        text: String,
    },

    /// The memory of the machine, or of a device, is not known.
    #[error(
        "it is not known how much memory there is: {reason}. Give the number with `Budget::Bytes`"
    )]
    UnknownMachine {
        /// Why.
        reason: String,
    },

    /// A batch of no items.
    #[error("a batch of 0 items trains nothing: say with `with_batch` how many there are")]
    NoBatch,

    /// No technique that is allowed brings the training below the budget.
    #[error(
        "the training does not fit {budget} bytes: it takes at least {least}, {missing} more. {advice}",
        missing = least.saturating_sub(*budget)
    )]
    NothingFits {
        /// The bytes there are.
        budget: usize,
        /// The peak of the smallest way to train, in bytes; of one of which no pass has come to its end, what measuring it takes at
        /// least, half a megabyte for what a first pass has beside gradients included.
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

crate::error::debug_prints_message!(PlanError);
