use std::fmt::{Display, Formatter};

use serde::{Deserialize, Serialize};

/// The activity of the training at a point in time of a [`MemoryTimeline`](super::MemoryTimeline).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No other phase.
    Other,
    /// The forward pass.
    Forward,
    /// The backward pass, without the updates in it. If a `TrainStep` of Burn's training runs both passes, it starts with the
    /// first complete gradient.
    Backward,
    /// An update.
    Update {
        /// Path of the parameter; `None` if all are updated at once, as in stock Burn.
        parameter: Option<String>,
    },
    /// Validation.
    Validation,
}

impl Display for Phase {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other => f.write_str("other"),
            Self::Forward => f.write_str("forward"),
            Self::Backward => f.write_str("backward"),
            Self::Update { parameter: None } => f.write_str("update"),
            Self::Update {
                parameter: Some(path),
            } => write!(f, "update of {path}"),
            Self::Validation => f.write_str("validation"),
        }
    }
}

/// The moment at which a phase starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Phase that starts.
    pub phase: Phase,
}
