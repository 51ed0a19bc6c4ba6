use std::fmt::{Display, Formatter};

use serde::{Deserialize, Serialize};

/// A set of techniques that the [`Planner`](crate::Planner) considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The techniques, for example `2 micro-batches, 4 of 6 blocks recomputed`.
    pub name: String,
    /// Approximate peak bytes on the compute device; on a CPU, of the whole process.
    pub device_bytes: usize,
    /// Approximate bytes on the host, if the model computes on another device.
    pub host_bytes: usize,
    /// `true` if a dry run of exactly this candidate was within the budget.
    pub is_proved: bool,
}

impl Display for Candidate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        write!(f, "{:>9.2} MB", mega(self.device_bytes))?;
        if self.host_bytes > 0 {
            write!(f, ", host {:.2} MB", mega(self.host_bytes))?;
        }
        write!(f, "  {}", self.name)
    }
}
