use serde::{Deserialize, Serialize};

/// A block of a model that was recomputed in a step: how much memory that
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
    /// Bytes of autodiff's notes of the way back through it, made when that begins: those of all blocks at once, if they keep their
    /// activations.
    #[serde(default)]
    pub tape: usize,
}

impl RecomputedBlock {
    /// Bytes that it would have held at this moment in a fused step if it had kept its activations.
    #[doc(hidden)]
    pub fn held_at(&self, seconds: f64) -> usize {
        if self.is_between(seconds) {
            self.own().saturating_add(self.tape)
        } else {
            0
        }
    }

    /// The same in a step of stock Burn, whose tape is shorter.
    #[doc(hidden)]
    pub fn held_in_stock_at(&self, seconds: f64) -> usize {
        if self.is_between(seconds) {
            self.own()
        } else {
            0
        }
    }

    /// What it returns was there in any case.
    fn own(&self) -> usize {
        self.activations.saturating_sub(self.outputs)
    }

    /// Whether its activations would wait at this moment.
    fn is_between(&self, seconds: f64) -> bool {
        (self.forward..self.backward).contains(&seconds)
    }
}
