use serde::{Deserialize, Serialize};

/// Bytes in use by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Buffers of parameters.
    pub parameters: usize,
    /// Buffers of complete gradients, from their allocation on.
    pub gradients: usize,
    /// Memory that updates have allocated and not freed.
    pub optimizer_state: usize,
    /// Everything else: activations, intermediates, bookkeeping, data, and memory allocated before.
    pub rest: usize,
    /// Bytes in use on a device that does not report their use.
    pub unassigned: usize,
}

impl Bytes {
    /// Returns the sum of the categories: all bytes in use.
    pub fn total(&self) -> usize {
        let others = [
            self.gradients,
            self.optimizer_state,
            self.rest,
            self.unassigned,
        ];
        others
            .into_iter()
            .fold(self.parameters, usize::saturating_add)
    }
}
