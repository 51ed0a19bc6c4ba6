//! Gradient checkpointing by block.
//!
//! # Memory
//!
//! Between its first run and its recomputation a block keeps its [`SavedInput`] (on its device or on the host), the
//! specs of its outputs, and one [`CheckpointNode`] on the tape. Activations exist only while the block runs its
//! backward pass.
//!
//! # Invariants
//!
//! - The first run is untracked. The recomputation builds its own graph, because the outer graph is locked.
//! - Both runs draw the same random numbers and see the running statistics from before the first run.

mod activations;
mod checkpointed_block;
mod constant;
mod fingerprint;
mod node;
mod outputs;
mod saved_input;
mod sequence;
mod sequential;
mod tiled;

use std::any::type_name;
use std::panic::resume_unwind;
use std::sync::Arc;

use backburn_base::lift;
use burn::module::Module;
use burn::tensor::{Device, GradientCheckpointingStrategy};

use activations::each;
pub use activations::{Activations, FloatMap};
use checkpointed_block::{
    BlockCall, CheckpointedBlock, FirstRun, InputKind, block_name, with_panic_context,
};
pub use constant::Constant;
use node::CheckpointNode;
use outputs::{OutputSpecs, tap_outputs};
use saved_input::SavedInput;
pub use sequence::{Sequence, Whole};
pub use sequential::gradient_checkpointing_sequential;
pub use tiled::gradient_checkpointing_tiled;

use crate::parameters::{StatisticsGuard, merge_pending, running_statistics};
use crate::pass::{BlockMode, FailedIn, RandomRun, Scope, StepEvent};
use crate::tap;
use crate::weights::{
    TrackedTensor, is_for_inference, is_in_stock_training, is_in_training,
    tracked_and_not_attached, with_constants, with_frozen,
};

/// Runs a block of a model and keeps only its `input`. The backward pass recomputes the activations.
///
/// In a fused step the block first runs untracked. When the backward pass reaches it, the block is recomputed, tracked, and its
/// parameters are stepped. Use it inside the `forward` of a model: outside
/// of a fused step (stock training, validation, inference) it only calls `forward`.
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
/// let mut fused = FusedOptimizer::new(Mlp { blocks }, AdamConfig::new().init())?;
/// fused.step(1e-3, |model| model.forward(x).mean())?;
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// `forward` must compute with `block` and `input` only. Inputs and outputs are [`Activations`]: tensors,
/// and structures of them. Blocks may share weights and nest. Running statistics are updated once.
///
/// # Captures of the closure
///
/// The closure may capture values that are [`Copy`], such as numbers and flags. Tensors are not `Copy`: their graph is locked when
/// the block is recomputed. For a captured tensor the compiler reports "the trait bound `burn::Tensor<2>: Copy` is not
/// satisfied in" the closure, or, without `move`, that the closure may outlive a borrowed value.
///
/// ```compile_fail,E0277
/// # use backburn::gradient_checkpointing;
/// # use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # let block: Linear = LinearConfig::new(2, 2).init(&Device::flex());
/// # let [x, residual] = [(); 2].map(|_| Tensor::<2>::ones([3, 2], &Device::flex()));
/// gradient_checkpointing(&block, x, move |block: &Linear, x| block.forward(x) + residual.clone());
/// ```
///
/// Pass the tensor as an input, other values that are not `Copy` as a [`Constant`], and a layer that several blocks share
/// as a part of each block:
///
/// ```
/// # use backburn::{Constant, gradient_checkpointing};
/// # use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # let [block, shared] = [(); 2].map(|_| LinearConfig::new(2, 2).init(&Device::flex()));
/// # let scales = [0.5, 2.0].to_vec();
/// # let [x, residual] = [(); 2].map(|_| Tensor::<2>::ones([3, 2], &Device::flex()));
/// gradient_checkpointing(
///     &(block.clone(), shared.clone()),
///     (x, residual, Constant(scales)),
///     |(block, shared): &(Linear, Linear), (x, residual, Constant(scales))| {
///         shared.forward(block.forward(x) * scales[0]) + residual * scales[1]
///     },
/// );
/// ```
///
/// # Running states
///
/// Both runs read a running state as it was before the first run, and the state is updated once. Read a state with
/// `RunningState::value_sync`, as batch normalization does, to get the result of stock Burn. `RunningState::value` returns the same
/// value in a block, because pending updates are merged before each pass and each block; in stock Burn it can be one update older.
///
/// # Random numbers
///
/// Both runs draw the same random numbers: each block has its own seed, derived from a seed that is drawn once per
/// step. With dropout, the results therefore differ from those of plain calls as the results of two seeds do. They
/// equal those of blocks that [keep their activations](crate::GradientCheckpointingConfig::keep_activations).
///
/// All threads share Burn's generator, so a step that draws holds a lock, and trainings on several threads take turns. The first
/// step detects a model that draws nothing, which then waits for no lock. A thread of a rayon pool does not wait: a block that draws
/// and can't have the lock ends its step with [`FusedError::RandomNumbersLocked`](crate::FusedError::RandomNumbersLocked) before it
/// runs. If a thread outside of the training draws during a run (a
/// worker of a data loader, for example), or the recomputation computes another result, the step ends with
/// [`FusedError::RandomNumbers`](crate::FusedError::RandomNumbers). Of a block that uses no generator of Burn, up to 1,024 elements of
/// each output are compared, up to rounding, and none on a remote device. CubeCL devices are not checked, because that would wait for the
/// device. They also draw one seed for all steps, so seeding the device later affects only numbers that are drawn outside of blocks.
/// On CubeCL a block that begins to draw in a later step repeats its numbers on one device, but not on several, nor while another
/// training has the lock.
///
/// # Gradients
///
/// The gradients equal those of the block without checkpointing bit for bit. The exception is an input with three or more uses, inside
/// or outside of the block: autodiff may sum their terms in another order.
///
/// A tracked input that the block does not use, or that does not affect the loss, receives a gradient of zeros. With
/// it, an optimizer with momentum updates the parameter; the log reports this once. To get no gradient, detach the
/// input before the block. A parameter of the block that is read but not used receives no gradient.
///
/// PyTorch's counterpart is [`torch.utils.checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html). The method was
/// proposed by [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
///
/// # Panics
///
/// - If `forward` returns a tensor that depends on a trainable tensor that is not an input and that the compiler can't detect: in a
///   [`Constant`], in a field of the block that is not a parameter, in a `static`. (If the block detaches the result of such a
///   tensor, this is not detected, and the recomputation deadlocks: pass the tensor as an input.)
/// - If it is called on a thread without the [`StepContext`](crate::StepContext) of the closure.
/// - In the backward pass, if the recomputation returns tensors of another shape or dtype.
///
/// A recomputation that reads other parameters than the first run ends the step with
/// [`FusedError::BlockReads`](crate::FusedError::BlockReads), because a skipped layer would not be stepped.
///
/// A panic in `forward` is passed on with the name of the block. Parameters whose gradient had not arrived are unchanged.
pub fn gradient_checkpointing<B, X, Y>(
    block: &B,
    input: X,
    forward: impl Fn(&B, X) -> Y + Copy + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    let mut devices = block.devices();
    each(&input, |tensor| devices.push(tensor.device()));
    if is_for_inference(block).unwrap_or(!devices.iter().any(Device::is_autodiff)) {
        // Possibly within a step.
        return forward(block, input);
    }
    let Some(scope) = Scope::current().filter(|scope| !is_in_stock_training(block, scope)) else {
        assert!(
            !is_in_training(block),
            "the block `{}` under gradient checkpointing is called outside of a training step, or on another thread \
             than the closure of the step. After the step use `FusedOptimizer::model()` or `valid()` instead of a clone; on another \
             thread enter the closure's `StepContext`",
            type_name::<B>()
        );
        return forward(block, input);
    };
    let mode = match scope.is_in_block() {
        true => BlockMode::Recompute { index: None },
        false => scope.pass.blocks.next(),
    };
    if let Some(observers) = &scope.pass.observers {
        let index = match mode {
            BlockMode::KeepActivations => None,
            BlockMode::Recompute { index } => index,
        };
        observers.emit(StepEvent::BlockForward { index });
    }
    if let Some(engine) = scope.pass.blocks.engine() {
        // Frozen weights are stored on the host, but computed with on the device.
        devices = vec![engine.device.clone()];
    }
    let random = scope.begin_random(type_name::<B>(), devices);
    let random = random.unwrap_or_else(|error| {
        // The step returns the error, also if this thread is joined.
        scope.pass.fail(FailedIn::Closure, error.clone());
        resume_unwind(Box::new(error))
    });
    match mode {
        BlockMode::KeepActivations => {
            if !running_statistics(block).is_empty() {
                // As for a block that is recomputed, so that both read the same values.
                merge_pending(block);
            }
            let _entered = scope.recorded(&random).enter();
            let block = with_frozen(block.clone(), scope.pass.blocks.engine());
            let output = forward(&block, input);
            random.end();
            output
        }
        BlockMode::Recompute { index } => {
            run_checkpointed(scope, block, input, random, index, forward)
        }
    }
}

/// Runs a block untracked, and puts a node on the tape that recomputes it when the gradients of its outputs have arrived.
fn run_checkpointed<B, X, Y>(
    scope: Scope,
    block: &B,
    input: X,
    random: RandomRun,
    index: Option<usize>,
    forward: impl Fn(&B, X) -> Y + Copy + Send + 'static,
) -> Y
where
    B: Module + 'static,
    X: Activations,
    Y: Activations,
{
    if let Some(index) = index {
        scope.pass.blocks.enter(index);
    }
    let (tracked_and_not_attached, values): (Vec<_>, Vec<_>) =
        tracked_and_not_attached(block).into_iter().unzip();
    let block = with_constants(block.clone(), &tracked_and_not_attached);
    // The input outside of its autodiff graph, and the tracked tensors that receive its gradients.
    let (mut kinds, mut tracked) = (Vec::new(), Vec::new());
    let mut strategy = GradientCheckpointingStrategy::default();
    let detached = input.map_floats(&mut |tensor| {
        strategy = tensor.gradient_checkpointing_strategy().unwrap_or(strategy);
        let kind = InputKind::of(&tensor);
        if kind == InputKind::Tracked {
            let index = kinds.len();
            let what = || format!("float input {index} (counted from 0)");
            tracked.push(TrackedTensor::new(tensor.clone(), what));
        }
        kinds.push(kind);
        match kind {
            InputKind::WithoutAutodiff => tensor,
            InputKind::Constant | InputKind::Tracked => tensor.inner(),
        }
    });
    let (inside, block_reads) = scope.unrecorded(&random);
    // Both runs start with these running statistics.
    let statistics = StatisticsGuard::new(&block).commit();
    let on = random.stream.devices.first().cloned();
    let mut constants = Vec::new();
    let (output, numbers) = {
        let _entered = inside.enter();
        let mut kinds = kinds.iter();
        let input = detached.clone().map_floats(&mut |tensor| {
            let kind = kinds.next();
            if kind == Some(&InputKind::WithoutAutodiff) {
                return tensor;
            }
            let lifted = lift(tensor, strategy);
            if kind == Some(&InputKind::Constant) {
                constants.extend(tap::node(&lifted));
            }
            lifted
        });
        let context = || {
            let name = block_name::<B>(&block_reads);
            format!("the first run of the recomputed block {name}")
        };
        let run = || {
            let block = with_frozen(block.clone(), scope.pass.blocks.engine());
            let output = forward(&block, input);
            (output, random.end())
        };
        let _running = scope.pass.blocks.running_blocks.clone();
        with_panic_context(run, context)
    };
    if let Some(device) = &on {
        scope.pass.blocks.collect_graph(device);
    }
    if let Some(index) = index {
        scope.pass.blocks.leave_first_run(index, &block_reads);
    }
    if !scope.records() {
        return output;
    }
    let name = block_name::<B>(&block_reads);
    let specs = OutputSpecs::of(&output);
    assert!(
        !specs.tracked,
        "the recomputed block {name} returns a tensor that depends on a trainable tensor from outside \
         of it: pass that as an input"
    );
    tracked.extend(values);
    let Some(device) = specs.device.clone() else {
        return output;
    };
    if block_reads.reads.is_empty() && tracked.is_empty() {
        // No gradient is needed.
        return output;
    }
    let (outputs, strategy) = (specs.tensors.len(), specs.strategy);
    let (pass, node_name) = (scope.pass.clone(), name.clone());
    let reads_parameters = !block_reads.reads.is_empty();
    let checkpointed = CheckpointedBlock {
        name,
        call: BlockCall {
            block,
            tracked_and_not_attached,
            input: SavedInput::new(detached, scope.pass.blocks.saved.as_ref()),
            kinds,
            forward,
        },
        first: FirstRun::of(&output, specs, numbers, statistics),
        scope,
        block_reads,
        index,
    };
    let recompute = Box::new(|gradients, signal| checkpointed.run(gradients, signal));
    let node = Arc::new(CheckpointNode::new(
        pass,
        node_name,
        reads_parameters,
        recompute,
        outputs,
    ));
    let anchor = node.anchor(tracked, &device, strategy);
    tap_outputs(output, &node, &anchor, strategy, &constants)
}
