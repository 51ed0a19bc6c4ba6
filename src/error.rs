use backburn_optim::OptimError;
use burn::module::ParamId;

/// An error of a training: in its construction, its config, a step, a record or the check of a device. The message names the
/// parameter or option and says what to do.
///
/// `Debug` prints the name of the variant and the message, so that `unwrap` and a `main` that returns the error show both.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FusedError {
    /// The model was created on a device without autodiff.
    #[error(
        "parameter `{path}` is on a device without autodiff ({device}): create the model on \
         `device.autodiff()`, or call `model.train()` on a model that `valid()` returned"
    )]
    NotAutodiff {
        /// Path of the first parameter found.
        path: String,
        /// Device of the parameter.
        device: String,
    },

    /// The backend of the model is not enabled in this build of backburn.
    #[error(
        "parameter `{path}` is on {device}, and this build of backburn does not support its backend: \
        enable the backburn feature of that backend (`flex`, `ndarray`, `wgpu`, `cuda`, ..). LibTorch is not supported"
    )]
    BackendNotCovered {
        /// Path of the first parameter found.
        path: String,
        /// Device of the parameter.
        device: String,
    },

    /// The optimizer does not support a parameter, for example because of its number of dimensions.
    #[error("parameter `{path}` can't be trained: {reason}")]
    UnsupportedParameter {
        /// Path of the parameter; the first by name if there are several.
        path: String,
        /// The cause, and what to do.
        reason: String,
    },

    /// A device does not exist or can't be opened.
    #[error(
        "{device} can't be used: {reason}. Check that the device exists and that its driver is \
        installed and new enough for this build of Burn; the output of the device's thread may contain the cause"
    )]
    DeviceUnavailable {
        /// The device.
        device: String,
        /// The cause.
        reason: String,
    },

    /// The server of a device no longer answers.
    #[error(
        "{device} does not answer: {reason}. Its tensors and the parameters of this step are lost: resume from the \
        last checkpoint, on another server or in a new process. The output of the server may contain the cause"
    )]
    DeviceLost {
        /// The device.
        device: String,
        /// The error that Burn reports.
        reason: String,
    },

    /// A device can't compute in a float type.
    #[error(
        "{device} can't compute in {dtype}: create the model in another float type (check with `supports_dtype` of \
        the device), or on another device"
    )]
    FloatTypeNotSupported {
        /// The float type.
        dtype: String,
        /// The device.
        device: String,
    },

    /// A device returns wrong results.
    #[error(
        "{device} returns wrong results in {dtype}: {found}. If a kernel did not compile, the output of the program \
        contains the reason (the device's thread prints it). Use another float type, or another device"
    )]
    WrongResults {
        /// The float type.
        dtype: String,
        /// The device.
        device: String,
        /// The wrong result.
        found: String,
    },

    /// The device failed to compute the loss, because a kernel or an allocation failed.
    #[error(
        "the device did not compute the loss: {reason}. No parameter was updated; if the device is out of memory, \
        make the batch smaller, use gradient checkpointing, or offload"
    )]
    LossNotComputed {
        /// The error that the device reports.
        reason: String,
    },

    /// The device failed to compute a gradient, because a kernel or an allocation failed. The check runs before the gradient
    /// is applied.
    #[error(
        "the device did not compute the gradient of parameter `{path}`: {reason}. The parameter and its \
        optimizer state are those of its last update; if the device is out of memory, make the batch \
        smaller, use gradient checkpointing, or offload more"
    )]
    GradientNotComputed {
        /// Path of the parameter.
        path: String,
        /// The error that the device reports.
        reason: String,
    },

    /// A kernel that computes the new value of a parameter failed.
    #[error(
        "the device did not compute the new value of parameter `{path}`: {reason}. If the parameter was updated in this \
        step, its value is lost: resume from the last checkpoint"
    )]
    NotComputed {
        /// Path of the first parameter found.
        path: String,
        /// The error that the device reports.
        reason: String,
    },

    /// One trainable parameter appears at two paths of the module.
    #[error(
        "parameter {id} appears twice in the module, as `{first}` and as `{second}`: Burn's \
        optimizer would update only one of them. Keep it in one place and use its value in both, \
        or give the copy its own id"
    )]
    DuplicateParameter {
        /// The id that both share.
        id: ParamId,
        /// The first path.
        first: String,
        /// The second path.
        second: String,
    },

    /// The tensor of a parameter was computed from other tracked tensors.
    #[error(
        "parameter `{path}` is not a leaf of the autodiff graph: its value was computed from other tracked \
         tensors. Detach it (`param.map(|value| value.detach())`), and call `require_grad` on the value to train it"
    )]
    NotALeaf {
        /// Path of the first parameter found.
        path: String,
    },

    /// The model is attached to a training: it was cloned inside of a training step, or is the result of `valid()` with offload or a
    /// `compute_dtype`.
    #[error(
        "parameter `{path}` belongs to a model that was cloned inside a fused step, or to the result of `valid()` with offload or \
         a `compute_dtype`: call `FusedOptimizer::model()` for an ordinary model"
    )]
    AlreadyFused {
        /// Path of the first parameter found.
        path: String,
    },

    /// A quantized parameter under an adapter was unfrozen. Quantized values can't be trained.
    #[error(
        "parameter `{path}` is quantized and was unfrozen, and quantized values can't be trained. Exclude it \
    (`unfreeze_group(ParamGroup::all().exclude(..))`), or convert it to an ordinary weight before you unfreeze it \
    (`model.materialize().unfreeze()`)"
    )]
    QuantizedInTraining {
        /// Path of the first parameter found.
        path: String,
    },

    /// The loss is not part of an autodiff graph.
    #[error(
        "the loss is not tracked by autodiff: it depends on no trainable parameter of the model. \
         Unfreeze a parameter, or don't detach the loss"
    )]
    LossNotTracked,

    /// No parameter of the model is trained.
    #[error("no parameter of the model is trained: all are frozen. {advice}")]
    NothingTrained {
        /// A way to train some, with the paths of at most five parameters.
        advice: String,
    },

    /// The backward pass reached none of the model's parameters.
    #[error(
        "the loss depends on no trainable parameter of the model: none of its {parameters} \
        parameters received a gradient, and nothing was updated. Compute the loss with the model that the closure receives, and \
        don't detach the model's output"
    )]
    LossWithoutParameters {
        /// The number of trainable parameters.
        parameters: usize,
    },

    /// An option of the config is invalid, or contradicts another one.
    #[error("the config is invalid: {reason}")]
    Config {
        /// The option, and what to do.
        reason: String,
    },

    /// The optimizer can't accumulate gradients of micro-batches in its state with these options.
    #[error("the optimizer can't accumulate in its state: {reason}")]
    NotInState {
        /// The cause, and what to do.
        reason: &'static str,
    },

    /// The policies run the forward pass twice, but the closure is `FnOnce`.
    #[error(
        "exact clipping and `Overflow::SkipStep` run the closure twice, but the closure of `step` can run only once: use \
        `step_repeatable`. Or choose options that run it once: `GlobalNormClippingConfig::ExactInBuffer`, which buffers the \
        gradients, also for `Overflow::SkipStep`; or `GlobalNormClippingConfig::Lagged`, or no clipping, with \
        `Overflow::SkipParameter`"
    )]
    RunsTwice,

    /// Two runs that must draw equal random numbers drew different ones: other code used Burn's generators, which all threads of the
    /// process share.
    #[error(
        "{place} gave another result than the first. Other code used Burn's random generators in between (on another thread, or in \
        another training that this thread of a rayon pool began while it waited), or the closure is not deterministic (it has its own \
        generator, or took another branch). {not_updated}. Draw noise inside the closure of the step, or in the batcher from a separate \
        generator (the crate `rand`); run each training on a thread of its own (`std::thread::spawn`)"
    )]
    RandomNumbers {
        /// The pass or block whose results differ.
        place: String,
        /// The parameters that were not updated.
        not_updated: String,
    },

    /// The recomputation of a block under gradient checkpointing read other parameters than its first run.
    #[error(
    "only the {} run of the recomputed block {name} read parameter `{path}`: its closure took another branch. Its \
    parameters and those that only earlier blocks use were not updated; those of later blocks may have been. A closure \
    must read the same parameters in each run: decide outside of the block, and capture the decision, or pass it as a \
    `Constant`",
        ["first", "second"][usize::from(*is_second)],
    )]
    BlockReads {
        /// Module and type of the block.
        name: String,
        /// Path of the first parameter that only one of the runs read.
        path: String,
        /// `true` if the recomputation read it, `false` if the first run did.
        is_second: bool,
    },

    /// A run must draw the same random numbers twice, but another one uses Burn's generators.
    #[error(
        "{place} draws random numbers twice, and another training or another thread of this one uses Burn's generators, which all \
        threads share. Run the training, and each block, on a thread of its own (`std::thread::spawn`). Threads of a rayon pool never wait \
        for the generators, and other threads end their wait if the holder makes no progress for ten seconds. The closure \
        of a step must not wait for another step on another thread, so call the other step before or after it. What takes long in a \
        closure (loading of data) belongs before the step"
    )]
    RandomNumbersLocked {
        /// The step or the block.
        place: String,
    },

    /// `step_accumulated` was called without accumulated gradients.
    #[error("no gradients are accumulated: call `accumulate` before `step_accumulated`")]
    NothingAccumulated,

    /// A step in parts without a part that has items.
    #[error(
        "no part of the batch has an item: pass `step_in_parts` at least one part whose number of items is above zero"
    )]
    NoItems,

    /// The backward pass of a micro-batch failed after it had overwritten a sum of gradients, which has no copy.
    #[error(
        "a micro-batch failed after it had changed the accumulated gradient of parameter `{path}`: {reason}. All \
        accumulated gradients are dropped: start again with the first micro-batch since the last step"
    )]
    AccumulatedLost {
        /// Path of the parameter; the first by name if there are several.
        path: String,
        /// The error of the backward pass.
        reason: String,
    },

    /// The global norm of the gradients is not finite; no gradient was applied.
    #[error(
        "the global norm of the gradients is {norm}, because the gradient of parameter `{path}` is not finite: no \
    parameter was updated. Look for the first loss that is not finite, or lower the learning \
    rate"
    )]
    NormNotFinite {
        /// The norm.
        norm: f64,
        /// Path of the first parameter, by name, whose gradient is not finite.
        path: String,
    },

    /// The global norm of the gradients is not finite, and gradients were applied before it was measured. This happens with
    /// lagged clipping on an asynchronous device.
    #[error(
        "the global norm of the gradients is {norm}, because the gradient of parameter `{path}` is not finite, and \
    parameters were updated with it: resume from the last checkpoint. Look for the first loss that is not finite, \
    lower the learning rate, or clip with `GlobalNormClippingConfig::Exact`, which measures before it updates (and accumulate in a buffer, not in the optimizer state)"
    )]
    UpdatedNotFinite {
        /// The norm.
        norm: f64,
        /// Path of the first parameter, by name, whose gradient is not finite.
        path: String,
    },

    /// A closure that runs the backward pass itself, or a `TrainStep`, edited the gradient of a parameter that the backward
    /// pass updates. A `TrainStep` may also have removed it, or added one for a frozen parameter.
    #[error(
        "the training step edited, added or removed the gradient of parameter `{path}` after the backward pass, which uses \
        each as it arrives: don't edit the gradients that the step returns (`GradientsParams`, \
        `TrainOutput::grads`); change gradients in a hook (`with_hook`), which receives each before it is applied"
    )]
    GradientReturned {
        /// Path of the parameter; the first of the module if there are several.
        path: String,
    },

    /// A gradient with an element that is infinite or NaN ended the step: with lagged clipping, or in f16 when it was divided by a
    /// loss scale below 1.
    #[error(
        "the gradient of parameter `{path}` is not finite: it and every parameter whose gradient had not \
         arrived were not updated. Look for the first loss that is not finite, or lower the \
         learning rate"
    )]
    GradientNotFinite {
        /// Path of the parameter.
        path: String,
    },

    /// A hook of the user stopped the step with its own reason.
    #[error("a hook stopped the step at parameter `{path}`: {reason}")]
    StoppedByHook {
        /// Path of the parameter.
        path: String,
        /// The reason that the hook returned.
        reason: String,
    },

    /// A hook returned a gradient of another shape, dtype or device.
    #[error(
        "a hook returned {found} as the gradient of parameter `{path}`, which is {expected}: return a gradient of the same \
        shape, dtype and device. The parameter was not updated"
    )]
    HookedGradient {
        /// Path of the parameter.
        path: String,
        /// Shape, dtype and device of the gradient that the hook received.
        expected: String,
        /// Shape, dtype and device of the gradient that it returned.
        found: String,
    },

    /// The training can't be offloaded with this config.
    #[error("the training can't be offloaded: {reason}")]
    Offload {
        /// The cause, and what to do.
        reason: String,
    },

    /// A parameter that is not cast to the compute dtype has another float type.
    #[error(
        "`FusedConfig::compute_dtype` is {compute_dtype}, but parameter `{path}` is {dtype} and is not cast, because it is \
        frozen, a running statistic, or has a reparameterization: cast it and the inputs of the closure to {compute_dtype}, \
        or remove `compute_dtype`"
    )]
    ComputeDtype {
        /// Path of the parameter in the model.
        path: String,
        /// Float type of the parameter.
        dtype: String,
        /// The configured compute dtype.
        compute_dtype: String,
    },

    /// A weight or a gradient could not be transferred to another device.
    #[error(
        "parameter `{path}` or its gradient could not be transferred to another device: {reason}. If a device does not \
        answer, resume from the last checkpoint. If one is out of memory, offload more, or make the batch or the blocks smaller: \
        with offload, its value and optimizer state are on the host, as of the last update"
    )]
    Transfer {
        /// Path of the parameter.
        path: String,
        /// The error that the device reports.
        reason: String,
    },

    /// The devices, batches or options don't fit a training on several devices.
    #[error("the replicas can't be trained: {reason}")]
    Replicas {
        /// The cause, and what to do.
        reason: String,
    },

    /// One of several ranks failed in a step, which ended the step on all ranks.
    #[error("rank {rank} ({device}) failed, which ended the step on all ranks: {error}")]
    Rank {
        /// The rank, counted from 0.
        rank: usize,
        /// Device of the rank.
        device: String,
        /// The error of the rank.
        error: Box<FusedError>,
    },

    /// One of several ranks panicked in a step, which ended the step on all ranks.
    #[error(
        "rank {rank} ({device}) panicked, which ended the step on all ranks: {message}. If the pass updates \
        parameters, those whose gradients had arrived from all ranks are updated; all others are unchanged"
    )]
    RankPanicked {
        /// The rank, counted from 0.
        rank: usize,
        /// Device of the rank.
        device: String,
        /// Message of the panic.
        message: String,
    },

    /// Loss scaling is on, and the code that runs the backward pass did not scale the loss.
    #[error(
        "loss scaling is on, but the model's `TrainStep::step`, or the closure of \
         `step_with_backward`, does not scale its loss: call \
         `backburn::scale_loss(loss).backward()`. No parameter was updated"
    )]
    LossNotScaled,

    /// The optimizer record contains the state of a parameter that the model does not have.
    #[error(
        "the optimizer record contains the state of parameter {id} (`{path}`), which the model does \
         not have: first load the model record that was saved with it"
    )]
    ForeignRecord {
        /// The id in the record.
        id: ParamId,
        /// The path in the record, empty if it has none.
        path: String,
    },

    /// The optimizer record contains a state with another number of dimensions than its parameter.
    #[error(
        "the optimizer record contains a state of {found} dimensions for parameter `{path}` of {expected}: the record was \
         saved with another model and was not loaded. Load the record that was saved with this model"
    )]
    RecordRank {
        /// Path of the parameter in the model.
        path: String,
        /// Number of dimensions of the parameter.
        expected: usize,
        /// Number of dimensions in the record.
        found: usize,
    },

    /// The optimizer record contains a state of another shape than its parameter.
    #[error(
        "the optimizer record contains `{state}` of shape {found:?} for parameter `{path}` of shape {expected:?}: the \
        record was saved with another model and was not loaded. Load the record that was saved with this model"
    )]
    RecordShape {
        /// Path of the parameter in the model.
        path: String,
        /// Name of the state in the optimizer.
        state: String,
        /// Shape of the parameter.
        expected: Vec<usize>,
        /// Shape in the record.
        found: Vec<usize>,
    },

    /// The optimizer record contains a state that the optimizer can't load.
    #[error(
        "the optimizer record contains `{state}` for parameter `{path}`, which this optimizer can't load: the record was \
        saved by another optimizer, or by one with other parameter groups, and was not loaded. Load the record of this \
        optimizer, or continue without one"
    )]
    RecordOfAnotherOptimizer {
        /// Path of the parameter in the record.
        path: String,
        /// Name of the state in the optimizer that saved it.
        state: String,
    },

    /// The optimizer record can't be read.
    #[error(
        "the optimizer record can't be read: {reason}. Load a record that Burn or backburn wrote, or continue without one"
    )]
    UnreadableRecord {
        /// The error that Burn reports.
        reason: String,
    },
}

impl FusedError {
    /// Returns the error of a recomputation whose outputs differ from those of the first run.
    pub(crate) fn recomputation_differs(block: &str) -> Self {
        Self::RandomNumbers {
    place: format!("the second run of the recomputed block {block}"),
    not_updated: "Its parameters and those that only earlier blocks use were not updated; those of later blocks may \
    have been"
    .to_string(),
        }
    }

    /// Returns the error of a two-pass step whose passes computed different losses or gradients.
    pub(crate) fn passes_differ(not_updated: &str) -> Self {
        Self::RandomNumbers {
            place: "the second of the two passes of a step".to_string(),
            not_updated: not_updated.to_string(),
        }
    }
}

/// Joins the first five of `names`, and counts the others.
pub(crate) fn listed(names: impl ExactSizeIterator<Item: std::fmt::Display>) -> String {
    const SHOWN: usize = 5;
    let more = names.len().saturating_sub(SHOWN);
    let shown: Vec<_> = names.take(SHOWN).map(|name| name.to_string()).collect();
    let shown = shown.join(", ");
    match more {
        0 => shown,
        _ => format!("{shown} and {more} more"),
    }
}

impl From<OptimError> for FusedError {
    fn from(error: OptimError) -> Self {
        match error {
            OptimError::Averaging { reason } => Self::Config { reason },
            OptimError::UnreadableRecord { reason } => Self::UnreadableRecord { reason },
        }
    }
}

/// Implements `Debug` for the variants of these names, which are all: the compiler checks it.
macro_rules! debug_prints_name_and_message {
    ($($variant:ident),*) => {
        impl std::fmt::Debug for FusedError {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let name = match self {
                    $(Self::$variant { .. } => stringify!($variant)),*
                };
                write!(f, "{name}: {self}")
            }
        }
    };
}

debug_prints_name_and_message! {
    NotAutodiff, BackendNotCovered, UnsupportedParameter, DeviceUnavailable, DeviceLost, FloatTypeNotSupported,
    WrongResults, LossNotComputed, GradientNotComputed, NotComputed, DuplicateParameter, NotALeaf, AlreadyFused,
    QuantizedInTraining, LossNotTracked, NothingTrained, LossWithoutParameters, Config, NotInState, RunsTwice,
    RandomNumbers, BlockReads, RandomNumbersLocked, NothingAccumulated, NoItems, AccumulatedLost, NormNotFinite,
    UpdatedNotFinite, GradientReturned, GradientNotFinite, StoppedByHook, HookedGradient, Offload, ComputeDtype,
    Transfer, Replicas, Rank, RankPanicked, LossNotScaled, ForeignRecord, RecordRank, RecordShape,
    RecordOfAnotherOptimizer, UnreadableRecord
}
