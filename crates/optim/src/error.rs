use backburn_base::debug_prints_message;

/// An error in the config of an optimizer or in an optimizer record.
///
/// `Debug` prints the same message.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum OptimError {
    /// A value out of range in the config of an average of the weights.
    #[error("the weights can't be averaged: {reason}")]
    Averaging {
        /// The value, and what to do.
        reason: String,
    },

    /// An optimizer record that can't be read.
    #[error(
        "the optimizer record can't be read: {reason}. Load a record that Burn or backburn wrote, or continue without one"
    )]
    UnreadableRecord {
        /// The error that Burn reports.
        reason: String,
    },
}

debug_prints_message!(OptimError);
