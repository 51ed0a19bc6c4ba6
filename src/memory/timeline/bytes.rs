use serde::{Deserialize, Serialize};

/// Bytes in use by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Buffers of parameters.
    pub parameters: usize,
    /// Buffers of finished gradients, from their birth on.
    pub gradients: usize,
    /// What updates have allocated and not freed.
    pub optimizer_state: usize,
    /// Everything else: activations, intermediates, bookkeeping, data, what was there before.
    pub rest: usize,
    /// In use on a device that does not tell for what.
    pub unassigned: usize,
}

impl Bytes {
    /// The sum of the categories: all bytes in use.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimizer_state + self.rest + self.unassigned
    }
}
