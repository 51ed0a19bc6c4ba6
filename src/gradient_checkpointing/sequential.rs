use burn::module::Module;

use super::{Activations, gradient_checkpointing};

/// Runs the blocks of a stack under [`gradient_checkpointing`], in segments whose lengths differ by one at most.
///
/// Memory holds the inputs of all segments, and the activations of one segment at a time. The default number of `segments` is the
/// square root of the number of blocks, rounded up, which minimizes memory ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).
///
/// ```
/// use backburn::gradient_checkpointing_sequential;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// # let device = Device::flex().autodiff();
/// let blocks: Vec<Linear> = (0..9).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let x = Tensor::<2>::ones([3, 8], &device);
/// let y = gradient_checkpointing_sequential(&blocks, x, None, |block, x| block.forward(x).tanh());
/// # assert_eq!(y.dims(), [3, 8]);
/// ```
///
/// # Panics
///
/// If `segments` is zero, and where [`gradient_checkpointing`] panics.
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
        "`segments` is 0, and there are {} blocks: there must be at least one segment",
        blocks.len()
    );
    let segments = segments.min(blocks.len());
    let start = |segment| segment * blocks.len() / segments;
    (0..segments).fold(input, |input, segment| {
        let segment = &blocks[start(segment)..start(segment + 1)];
        gradient_checkpointing(&segment.to_vec(), input, move |segment, input| {
            segment.iter().fold(input, |x, block| forward(block, x))
        })
    })
}
