//! Gradient checkpointing by block.

mod activations;
mod budget;
mod config;
mod fingerprint;
mod host;
mod joint;
mod keep;
mod name;
mod outputs;
mod segment;
mod worker;

use std::any::type_name;
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;

pub use activations::Activations;
pub use config::GradientCheckpointingConfig;
use fingerprint::Fingerprint;
use host::KeptInput;
use joint::Joint;
use keep::{Devices, Keep, Lift};
use name::{located, name};
use outputs::{Forms, Tapped};
use segment::Segment;

use crate::device::is_cubecl;
use crate::memory;
use crate::pass::{Scope, Way};
use crate::random::Stream;
use crate::slot::{SeenStates, is_in_training, slotless, with_constants, with_frozen};

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
/// Everything that `forward` computes with comes from `block` and `input`, but for constants. Inputs and outputs are float
/// tensors of any rank, integer and boolean ones, and tuples, options and lists of them. Blocks may share
/// weights and nest. Running statistics are updated once.
///
/// Both runs see a running state as it was before the first, and it is updated once. How a state of the block's own is
/// read (with `RunningState::value`, or in time with `RunningState::value_sync`, as batch normalization does) shows where
/// the runs are compared; a model reads all its own in one of the ways. On
/// CubeCL devices nothing is compared, and a block runs again on the thread of the backward pass: there a state that its
/// own block reads, and statistics of blocks on threads of the program's own, can differ from those of stock.
///
/// Both runs see the same random numbers: every block gets a seed of its own, from one that is drawn once
/// a step from the generator of its device. All threads share that generator: where another one draws from it
/// during a run (a worker of a data loader may), the block runs again, with pauses for about two seconds, and if that
/// does not help, the step ends with [`FusedError::RandomNumbers`](crate::FusedError::RandomNumbers). So with dropout a run differs from one
/// that simply calls its blocks as one seed from another, and equals one whose blocks all [keep their
/// activations](GradientCheckpointingConfig::keep_activations).
///
/// CubeCL devices would have to be waited for. There one seed is drawn for all steps, in the first that needs one,
/// so that seeding the device again later changes only what is drawn outside of blocks; and that another thread
/// has drawn is not noticed.
///
/// A tracked input that the block leaves unused, or whose outputs the loss does, gets a gradient of zeros, with which an
/// optimizer with momentum moves on; the log says so once. Where there should be none, detach it before the block. A
/// parameter of the block that is read and not used gets none.
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
/// If `forward` returns a tensor that depends on a trainable tensor from outside the block; if it is called
/// on a thread without the [`StepContext`](crate::StepContext) of the closure. In the backward pass, if the
/// second run returns tensors of another shape or dtype, or computes with a tracked tensor from outside the
/// block: the graph of that is locked then, which is noticed after ten seconds where a closure has captured it (on
/// CubeCL devices it is not, since every thread has a stream of its own there). The
/// message of a panic in `forward` is passed on with the name of the block. Parameters whose gradient had
/// not arrived are unchanged then.
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
    let Some(scope) = Scope::current() else {
        assert!(
            !is_in_training(block),
            "the block `{}` under gradient checkpointing is called on another thread than the closure \
             of the step: enter the closure's `StepContext` there",
            type_name::<B>()
        );
        return forward(block, input);
    };
    let _turn = scope.pass.take_turn();
    let way = match scope.is_in_block() {
        true => Way::RunTwice { index: None },
        false => scope.pass.blocks.next(),
    };
    let random = numbers(&scope, devices);
    match way {
        Way::Keep => {
            let _entered = scope.kept(random.seed).enter();
            random.during(1, || match scope.pass.placement() {
                None => forward(block, input),
                Some(placement) => forward(&with_frozen(block.clone(), placement), input),
            })
        }
        Way::RunTwice { index } => run_twice(scope, block, input, random, index, forward),
    }
}

/// The random numbers of the next block in `scope`, which computes on `devices`.
fn numbers(scope: &Scope, devices: Vec<Device>) -> Stream {
    let random = Stream::new(devices, |device| scope.next_seed(device));
    scope.pass.blocks.draw_on(&random.devices);
    random
}

/// Runs a block once, and lets it wait for the gradients of its outputs to run again.
fn run_twice<B, X, Y>(
    scope: Scope,
    block: &B,
    input: X,
    random: Stream,
    index: Option<usize>,
    forward: impl Fn(&B, X) -> Y + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    let run = index.and_then(memory::enter_block);
    if let Some(index) = index {
        scope.pass.enter_block(index);
    }
    let (slotless, values): (Vec<_>, Vec<_>) = slotless(block).into_iter().unzip();
    let block = with_constants(block.clone(), &slotless);
    let mut keep = Keep::default();
    let kept = input.map_floats(&mut keep);
    let Keep { tracked, strategy } = keep;
    let (inside, readers) = scope.unrecorded(random.seed);
    let states = SeenStates::before(&block);
    let begun = Instant::now();
    let (output, drawn) = {
        let _entered = inside.enter();
        let input = kept.clone().map_floats(&mut Lift { strategy });
        let place = || {
            let name = name::<B>(&readers);
            format!("the first run of the recomputed block {name}")
        };
        let run = || match scope.pass.placement() {
            None => random.during_noted(1, || forward(&block, input)),
            Some(placement) => {
                let block = with_frozen(block.clone(), placement);
                random.during_noted(1, || forward(&block, input))
            }
        };
        scope.pass.blocks.first_run(|| located(run, place))
    };
    let took = begun.elapsed();
    let states = states.after(&block);
    if let Some(device) = random.devices.first() {
        scope.pass.blocks.sweep(device);
    }
    if let Some(index) = index {
        scope.pass.leave_first_run(index, &readers);
    }
    if !scope.records() {
        return output;
    }
    let name = name::<B>(&readers);
    let mut forms = Forms::default();
    let output = output.map_floats(&mut forms);
    assert!(
        !forms.tracked,
        "the recomputed block {name} returns a tensor that depends on a trainable tensor from outside \
         of it: pass that as an input"
    );
    let is_tracked = tracked.iter().map(Option::is_some).collect();
    let tracked: Vec<_> = tracked.into_iter().flatten().chain(values).collect();
    let Some(device) = forms.device.clone() else {
        return output;
    };
    if readers.is_empty() && tracked.is_empty() {
        // Nothing in it is trained.
        return output;
    }
    // What a state of the block's own has done to its output is compared, too.
    let compares = drawn || states.has_own() && !random.devices.iter().any(is_cubecl);
    let (output, fingerprint) = match compares {
        false => (output, None),
        true => {
            let (output, fingerprint) = Fingerprint::of(output);
            (output, Some(fingerprint))
        }
    };
    let outputs = forms.found.len();
    let strategy = forms.strategy;
    let (pass, name_of_joint) = (scope.pass.clone(), name.clone());
    let segment = Segment {
        block,
        slotless,
        name,
        input: KeptInput::new(kept, scope.pass.blocks.choice.offload_inputs),
        tracked: is_tracked,
        forward,
        strategy,
        outputs: forms,
        scope,
        random,
        fingerprint,
        took,
        states,
        thread: worker::thread(),
        readers,
        index,
        run,
    };
    let rerun = Box::new(|gradients| segment.run(gradients));
    let joint = Arc::new(Joint::new(pass, name_of_joint, rerun, outputs));
    output.map_floats(&mut Tapped {
        node: joint.node(tracked, &device, strategy),
        joint: &joint,
        strategy,
        index: 0,
    })
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
