use serde::{Deserialize, Serialize};

/// A file of a checkpoint.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    #[serde(rename = "model.bpk")]
    Model,
    #[serde(rename = "optimizer.bpk")]
    Optimizer,
    #[serde(rename = "scheduler.bpk")]
    Scheduler,
    #[serde(rename = "progress.cbor")]
    Progress,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [
        Self::Model,
        Self::Optimizer,
        Self::Scheduler,
        Self::Progress,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Model => "model.bpk",
            Self::Optimizer => "optimizer.bpk",
            Self::Scheduler => "scheduler.bpk",
            Self::Progress => "progress.cbor",
        }
    }
}
