use burn::module::Module;

use super::{Activations, gradient_checkpointing};

/// [`gradient_checkpointing`]s the blocks of a stack in segments of equal length.
///
/// With `segments` segments of `n` blocks, their inputs are kept, and the activations of one segment at a
/// time: without a number, it is the root of `n`, rounded up, which keeps least
/// ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).
///
/// # Panics
///
/// If `segments` is zero; as [`gradient_checkpointing`].
pub fn gradient_checkpointing_sequential<B, X>(
    blocks: &[B],
    input: X,
    segments: impl Into<Option<usize>>,
    forward: impl Fn(&B, X) -> X + Copy + Send + 'static,
) -> X
where
    B: Module + 'static,
    X: Activations,
{
    let root = || (blocks.len() as f64).sqrt().ceil() as usize;
    let segments = segments.into().unwrap_or_else(root);
    assert!(
        segments > 0 || blocks.is_empty(),
        "a stack of {} blocks can't be recomputed in 0 segments",
        blocks.len()
    );
    let length = blocks.len().div_ceil(segments.max(1)).max(1);
    blocks.chunks(length).fold(input, |input, segment| {
        gradient_checkpointing(&segment.to_vec(), input, move |segment, input| {
            segment.iter().fold(input, |x, block| forward(block, x))
        })
    })
}
