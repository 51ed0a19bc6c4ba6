//! Blocks that are recomputed, or not.

use backburn::{Activations, gradient_checkpointing};
use burn::module::Module;

/// Calls `forward` as a block that is recomputed, or plainly.
pub fn block_if<B, X, Y>(
    recompute: bool,
    block: &B,
    input: X,
    forward: impl Fn(&B, X) -> Y + Copy + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    match recompute {
        true => gradient_checkpointing(block, input, forward),
        false => forward(block, input),
    }
}
