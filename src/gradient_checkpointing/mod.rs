//! Gradient checkpointing by block.

mod activations;
mod blocks;
mod budget;
mod config;
mod host;
mod keep;
mod name;
mod pack;
mod segment;

use std::any::type_name;

use burn::module::Module;
use burn::tensor::Tensor;

pub use activations::Activations;
use blocks::Way;
pub(crate) use blocks::{enter, take_leaf_gradients};
pub use config::GradientCheckpointingConfig;
use host::KeptInput;
use keep::{Devices, Keep, Lift};
use name::{located, name};
use pack::{Pack, Unpack, moved};
use segment::Segment;

use crate::memory::{self, BlockRun};
use crate::pass::Scope;
use crate::random::Stream;
use crate::slot::{is_in_training, leaves, with_constants};
use crate::tap::{lift, tap};

/// Runs a block of a model so that its activations are not kept: in a fused step, only `input` is.
///
/// The block runs without recording, and once more, recorded, when the backward pass reaches it; its
/// parameters are finished there. Used inside the `forward` of a model, which works everywhere: outside
/// of a fused step (stock training, validation, inference) `forward` is simply called.
///
/// ```
/// use backburn::{FusedOptimizer, gradient_checkpointing};
/// use burn::module::Module;
/// use burn::nn::{Gelu, Linear, LinearConfig};
/// use burn::optim::AdamConfig;
/// use burn::tensor::{Device, Tensor};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     blocks: Vec<Linear>,
/// }
///
/// impl Mlp {
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         self.blocks.iter().fold(x, |x, block| {
///             gradient_checkpointing(block, x, |block, x| Gelu::new().forward(block.forward(x)))
///         })
///     }
/// }
///
/// # let device = Device::flex().autodiff();
/// # let blocks = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// # let x = Tensor::<2>::ones([3, 8], &device);
/// let mut fused = FusedOptimizer::new(Mlp { blocks }, AdamConfig::new().init());
/// fused.step(1e-3, |model| model.forward(x).mean());
/// ```
///
/// Everything that `forward` computes with comes from `block` and `input`. Inputs and outputs are float
/// tensors of any rank, integer and boolean ones, and tuples, options and lists of them. Blocks may share
/// weights and nest. Running statistics are updated once.
///
/// Both runs see the same random numbers: every block gets a seed of its own, from one that is drawn once
/// a step from the generator of its device, which is waited for. So with dropout a run differs from one that
/// simply calls its blocks as one seed from another, and equals one whose blocks all [keep their
/// activations](GradientCheckpointingConfig::keep_activations).
///
/// The gradients are those of the block without checkpointing, to the bit where a tensor that has uses both
/// inside and outside of the block (an input that goes around it, an output that it computes with) has two in
/// all; with more, autodiff sums their terms in another order.
///
/// PyTorch knows it as
/// [`torch.utils.checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html); it was proposed by
/// [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
///
/// # Panics
///
/// If `forward` returns a tensor that depends on a trainable tensor from outside the block, no float
/// tensor, or float tensors of several dtypes, or takes such with a gradient; if it is called on another
/// thread than the closure of the step; in the backward pass, if the second run returns tensors of another size. The message of a panic in
/// `forward` is passed on with the name of the block. Parameters whose gradient had not arrived are
/// unchanged then.
pub fn gradient_checkpointing<B, X, Y>(
    block: &B,
    input: X,
    forward: impl Fn(&B, X) -> Y + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    let mut devices = Devices(block.devices());
    let input = input.map_floats(&mut devices);
    let Devices(devices) = devices;
    if devices.iter().any(|device| !device.is_autodiff()) {
        // Inference, or a look at the model for inference in a step.
        return forward(block, input);
    }
    match blocks::next() {
        None => {
            assert!(
                !is_in_training(block),
                "the recomputed block `{}` is called on another thread than the closure of the \
                 step, where it can't be recomputed: call it there",
                type_name::<B>()
            );
            forward(block, input)
        }
        Some(Way::Keep) => {
            let random = blocks::random(devices);
            let _scope = Scope::enter_kept(random.seed);
            random.during(1, || forward(block, input))
        }
        Some(Way::RunTwice { index }) => {
            let run = index.and_then(memory::enter_block);
            run_twice(block, input, blocks::random(devices), run, forward)
        }
    }
}

/// Runs a block once, and lets it wait for the gradient of its output to run again.
fn run_twice<B, X, Y>(
    block: &B,
    input: X,
    random: Stream,
    run: Option<BlockRun>,
    forward: impl Fn(&B, X) -> Y + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    let leaves = leaves(block);
    let block = with_constants(block.clone(), &leaves);
    let mut inputs = Pack::of_tracked();
    let mut keep = Keep::default();
    let kept = input.map_floats(&mut inputs).map_floats(&mut keep);
    let strategy = keep.strategy;
    let is_recorded = Scope::readers().is_none();
    let (output, readers) = {
        let (_scope, readers) = Scope::enter_unrecorded(random.seed);
        let input = kept.clone().map_floats(&mut Lift { strategy });
        let place = || {
            format!(
                "the first run of the recomputed block {}",
                name::<B>(&readers)
            )
        };
        let output = located(|| random.during(1, || forward(&block, input)), place);
        (output, readers)
    };
    let mut outputs = Pack::default();
    let output = output.map_floats(&mut outputs);
    if !is_recorded {
        return output;
    }
    let name = name::<B>(&readers);
    assert!(
        !outputs.is_tracked(),
        "the recomputed block {name} returns a tensor that depends on a trainable tensor from \
         outside of it: pass that as an input"
    );
    let outputs = outputs.pack(&name).unwrap_or_else(|| {
        panic!("the recomputed block {name} returns no float tensor: call it without gradient checkpointing")
    });
    let strategy = outputs
        .gradient_checkpointing_strategy()
        .unwrap_or_default();
    let device = outputs.device();
    let inputs = match inputs.pack(&name) {
        Some(inputs) => moved(inputs, &device),
        // Something for the tap to be beside.
        None => lift(Tensor::zeros([1], &device.inner()), strategy),
    };
    let segment = Segment {
        block,
        leaves,
        name,
        input: KeptInput::new(kept, blocks::offload_inputs()),
        tracked: keep.tracked,
        forward,
        strategy,
        random,
        readers,
        run,
    };
    // The gradient of the output comes to the segment, and that of the input goes on from there.
    let outputs = tap(
        outputs.inner(),
        strategy,
        inputs.into_dispatch(),
        segment.into_sink(),
        None,
    );
    output.map_floats(&mut Unpack::new(outputs))
}

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
    forward: impl Fn(&B, X) -> X + Clone + Send + 'static,
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
        let forward = forward.clone();
        gradient_checkpointing(&segment.to_vec(), input, move |segment, input| {
            segment.iter().fold(input, |x, block| forward(block, x))
        })
    })
}
