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
mod detached;
mod fingerprint;
mod first_run;
mod node;
mod outputs;
mod saved_input;
mod sequence;
mod sequential;
mod tiled;

use std::any::type_name;
use std::panic::resume_unwind;

use burn::module::Module;
use burn::tensor::Device;

use activations::each;
pub use activations::{Activations, FloatMap};
pub use constant::Constant;
use first_run::run_checkpointed;
pub use sequence::{Sequence, Whole};
pub use sequential::gradient_checkpointing_sequential;
pub use tiled::gradient_checkpointing_tiled;

use crate::parameters::{merge_pending, running_statistics};
use crate::pass::{BlockMode, FailedIn, RandomRun, Scope, StepEvent};
use crate::weights::{is_for_inference, is_in_stock_training, is_in_training, with_frozen};

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
/// [`FusedError::RandomNumbers`](crate::FusedError::RandomNumbers). If a block uses no generator of Burn, up to 1,024 elements of
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
/// A tracked input that the block does not use, or that does not affect the loss, receives a gradient of zeros (not if the block only
/// returns constants that it received). With zeros, an optimizer with momentum updates the parameter; the log reports this once. To get
/// no gradient, detach the input before the block. A parameter of the block that is read but not used receives no gradient.
///
/// PyTorch's counterpart is [`torch.utils.checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html). The method was
/// proposed by [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
///
/// # Panics
///
/// - If `forward` returns a tensor that depends on a trainable tensor that is not an input and that the compiler can't detect: in a
///   [`Constant`], in a field of the block that is not a parameter, in a `static`. (If the block detaches the result of such a
///   tensor, this is not detected, and the recomputation deadlocks: pass the tensor as an input.)
/// - If `forward` runs a backward pass over parameters of the training, in its first run or in the recomputation.
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
    let (mut devices, mut has_tracked_input) = (block.devices(), false);
    each(&input, |tensor| {
        devices.push(tensor.device());
        has_tracked_input |= tensor.is_tracked();
    });
    if is_for_inference(block).unwrap_or(!devices.iter().any(Device::is_autodiff)) {
        // Possibly within a step.
        return forward(block, input);
    }
    let is_own = |scope: &Scope| !is_in_stock_training(block, has_tracked_input, scope);
    let Some(scope) = Scope::current().filter(is_own) else {
        assert!(
            !is_in_training(block),
            "the block `{}` under gradient checkpointing is called outside of a training step, or on another thread \
             than the closure of the step. After the step use `FusedOptimizer::model()` or `valid()` instead of a clone; on another \
             thread enter the closure's `StepContext`",
            type_name::<B>()
        );
        return forward(block, input);
    };
    let mode = match scope.block.is_some() {
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
    let random = RandomRun::begin(&scope, type_name::<B>(), devices);
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
