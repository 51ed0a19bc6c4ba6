use serde::{Deserialize, Serialize};

/// The gradient of a parameter that was complete: stock Burn keeps it until the update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedGradient {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Its bytes.
    pub bytes: usize,
}
