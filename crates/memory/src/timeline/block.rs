use serde::{Deserialize, Serialize};

/// A checkpointed block that was recomputed in a step, with the memory that this saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecomputedBlock {
    /// Index of the block in its step, from 0, in the order of the calls. Nested blocks don't count.
    pub index: usize,
    /// Type of the block, and the path of its parameters in the model.
    pub name: String,
    /// Start of its first run, in seconds since the start of the recording.
    pub forward: f64,
    /// Start of its recomputation.
    pub backward: f64,
    /// Bytes that the recomputation had allocated before its backward pass. Without checkpointing they would be held
    /// between both runs.
    pub activations: usize,
    /// Bytes of the float tensors that it returns. They are part of the activations, and are held anyway as inputs of later
    /// layers.
    #[serde(default)]
    pub outputs: usize,
    /// Bytes of its autodiff graph, allocated at the start of the backward pass: for all blocks at once, if they keep their
    /// activations.
    #[serde(default)]
    pub tape: usize,
}

impl RecomputedBlock {
    /// Returns the bytes that the block would hold at this moment in a fused step if it kept its activations.
    #[doc(hidden)]
    pub fn held_at(&self, seconds: f64) -> usize {
        if !(self.forward..self.backward).contains(&seconds) {
            return 0;
        }
        // The outputs are held in any case.
        let own = self.activations.saturating_sub(self.outputs);
        own.saturating_add(self.tape)
    }
}
