use burn::module::Module;

use super::{Sequence, gradient_checkpointing};

/// [`gradient_checkpointing`] of what acts on every token of a sequence alone (an MLP, a norm, experts), on tiles of `tile_size` tokens,
/// one after the other: the activations of one tile are there at a time, in both passes, however long the sequence is.
///
/// `dim` is the dimension of the sequence, in all tensors that go in and come out. The gradient of a weight is the sum over the tiles,
/// before its one update.
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
/// What a tile needs of other tokens comes in as a [`Whole`](crate::Whole): so attention is a function of every query alone, given all keys
/// and values. Within a block that runs twice itself, only the block's input is kept, and what is tiled runs three times.
///
/// The results are those of the same tiles without checkpointing to the bit, and those of the whole sequence up to rounding: of
/// matrix products of fewer rows, and of the sums over the tiles. In a model in bf16 these are in bf16, or in f32 with
/// [`FusedConfig::full_precision_accumulation`](crate::FusedConfig::full_precision_accumulation). Each tile draws random numbers of its
/// own. In stock training and in validation `forward` is simply called for each tile.
///
/// Known as tiled MLP in ALST ([Bekman et al., 2025](https://arxiv.org/abs/2506.13996)).
///
/// # Panics
///
/// If `tile_size` is zero; if a tensor has no dimension `dim`, or not as many tokens as another; if `forward` returns another number of
/// tokens than it was given: then it does not act on every token alone. (A function that mixes tokens and keeps their number is not
/// noticed.) And as [`gradient_checkpointing`].
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
        panic!("no input can be cut into tiles, since all of them are whole: pass the one to be cut without `Whole`")
    });
    let tiles = (0..tokens.max(1)).step_by(tile_size).map(|start| {
        let range = start..tokens.min(start + tile_size);
        let given = range.len();
        let output = gradient_checkpointing(block, input.tile(dim, range), forward);
        let returned = output.tokens(dim);
        assert!(
            returned == Some(given),
            "the function of a tile was given {given} tokens and returned {}: one that runs on tiles acts on every token \
             alone",
            returned.map_or("no sequence".into(), |returned| returned.to_string())
        );
        output
    });
    Y::joined(tiles.collect(), dim)
}
