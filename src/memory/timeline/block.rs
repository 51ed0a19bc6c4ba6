use serde::{Deserialize, Serialize};

/// A block of a model that was [recomputed](crate::gradient_checkpointing()) in a step: how much memory that
/// saved, and how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecomputedBlock {
    /// Which of the blocks of its step it is, from 0 on, in the order of the calls. Blocks within
    /// blocks don't count.
    pub index: usize,
    /// Type of the block, and the place of its parameters in the model.
    pub name: String,
    /// When its first run began, in seconds since the start of the recording.
    pub forward: f64,
    /// When its second run began.
    pub backward: f64,
    /// Bytes that the second run had allocated when it was about to go back: what would have been held
    /// all the time in between.
    pub activations: usize,
    /// Bytes of the float tensors that it returns. They are among the activations, and held anyway as inputs of what follows.
    #[serde(default)]
    pub outputs: usize,
}

impl RecomputedBlock {
    /// Bytes that it would have held at this moment if it had kept its activations. What it returns was there in any case.
    pub(crate) fn held_at(&self, seconds: f64) -> usize {
        let is_between = (self.forward..self.backward).contains(&seconds);
        let held = self.activations.saturating_sub(self.outputs);
        if is_between { held } else { 0 }
    }
}
