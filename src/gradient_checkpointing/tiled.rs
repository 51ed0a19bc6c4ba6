use burn::module::Module;

use super::{Sequence, gradient_checkpointing};

/// Runs a block that acts on each token of a sequence separately (an MLP, a norm, experts) under
/// [`gradient_checkpointing`], in tiles of `tile_size` tokens. Only the activations of one tile exist at a time, in
/// both passes, for any length of the sequence.
///
/// `dim` is the dimension of the sequence in all inputs and outputs. The gradient of a weight is summed over the tiles
/// before its single update.
///
/// ```
/// use backburn::gradient_checkpointing_tiled;
/// use burn::nn::{Gelu, Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// # let device = Device::flex().autodiff();
/// # let mlp: (Linear, Linear) = (LinearConfig::new(8, 32).init(&device), LinearConfig::new(32, 8).init(&device));
/// # let x = Tensor::<3>::ones([2, 1000, 8], &device);
/// // `[batch, length, d_model]`
/// let x = gradient_checkpointing_tiled(&mlp, x, 1, 128, |(expand, contract): &(Linear, Linear), x| {
///     contract.forward(Gelu::new().forward(expand.forward(x)))
/// });
/// ```
///
/// Pass data of other tokens as a [`Whole`](crate::Whole): attention, for example, acts on each query separately, given all keys
/// and values. Inside of another checkpointed block, only the input of the outer block is kept, and the tiled block runs three times.
///
/// The results equal those of the same tiles without checkpointing bit for bit, and those of the whole sequence up to the rounding of
/// matrix products of fewer rows and of the sums over the tiles. In a model in bf16 the sums are in bf16; those of
/// parameters are in f32 with
/// [`FusedConfig::full_precision_accumulation`](crate::FusedConfig::full_precision_accumulation). Each tile draws its own random
/// numbers. In stock training and in validation `forward` is only called for each tile.
///
/// ALST calls it tiled MLP ([Bekman et al., 2025](https://arxiv.org/abs/2506.13996)).
///
/// # Panics
///
/// If `tile_size` is zero; if no input has tokens (all are [`Whole`](crate::Whole) or [`Constant`](crate::Constant)); if a tensor
/// has no dimension `dim`, or another number of tokens than the others; if `forward` returns another number of tokens than it
/// received, or a [`Whole`](crate::Whole) for one of several tiles. (A function that mixes tokens and keeps their number is not
/// detected.) Also where [`gradient_checkpointing`] panics.
pub fn gradient_checkpointing_tiled<B, X, Y>(
    block: &B,
    input: X,
    dim: usize,
    tile_size: usize,
    forward: impl Fn(&B, X) -> Y + Copy + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Sequence,
    Y: Sequence,
{
    assert!(
        tile_size > 0,
        "`tile_size` is 0: there must be at least one token in a tile"
    );
    let tokens = input.tokens(dim).unwrap_or_else(|| {
        panic!("no input can be split into tiles, because all inputs are `Whole` or `Constant`: pass the sequence without `Whole`")
    });
    let tiles = (0..tokens.max(1)).step_by(tile_size).map(|start| {
        let range = start..tokens.min(start + tile_size);
        let given = range.len();
        let output = gradient_checkpointing(block, input.tile(dim, range), forward);
        let returned = output.tokens(dim);
        assert!(
            returned == Some(given),
            "the function of a tile received {given} tokens and returned {}: it must act on each token \
            separately",
            returned.map_or("no sequence".into(), |returned| returned.to_string())
        );
        output
    });
    Y::joined(tiles.collect(), dim)
}
