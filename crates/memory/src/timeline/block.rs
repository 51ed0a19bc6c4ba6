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
        if self.is_between(seconds) {
            self.own().saturating_add(self.tape)
        } else {
            0
        }
    }

    /// Returns the bytes that the block would hold at this moment in a stock step, whose graph is smaller.
    #[doc(hidden)]
    pub fn held_in_stock_at(&self, seconds: f64) -> usize {
        if self.is_between(seconds) {
            self.own()
        } else {
            0
        }
    }

    /// Returns the activations without the outputs, which are held in any case.
    fn own(&self) -> usize {
        self.activations.saturating_sub(self.outputs)
    }

    /// Returns `true` if its activations would be held at this moment.
    fn is_between(&self, seconds: f64) -> bool {
        (self.forward..self.backward).contains(&seconds)
    }
}
