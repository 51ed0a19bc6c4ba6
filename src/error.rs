use backburn_base::debug_prints_message;
use backburn_optim::OptimError;
use burn::module::ParamId;

/// An error of creating a training, or of a step. The message names the parameter or option, and what to do.
///
/// `Debug` prints the message, too, so that `unwrap` and a `main` that returns the error show it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FusedError {
    /// The model was created on a device without autodiff.
    #[error(
        "parameter `{path}` is on a device without autodiff ({device}): create the model on \
         `device.autodiff()`, or call `model.train()` on one that comes from validation"
    )]
    NotAutodiff {
        /// Path of the first parameter found.
        path: String,
        /// Its device.
        device: String,
    },

    /// This build of backburn has no tap for the backend of the model.
    #[error(
        "parameter `{path}` is on {device}, a backend this build of backburn does not cover: \
         enable the backburn feature of that backend (`flex`, `ndarray`, `wgpu`, `cuda`, ..)"
    )]
    BackendNotCovered {
        /// Path of the first parameter found.
        path: String,
        /// Its device.
        device: String,
    },

    /// A parameter that its optimizer does not step, whatever its gradient.
    #[error("parameter `{path}` can't be trained: {reason}")]
    UnsupportedParameter {
        /// Path of the parameter; of several, the first by name.
        path: String,
        /// Why, and what to do.
        reason: String,
    },

    /// A device that is not there, or can't be opened.
    #[error(
        "{device} can't be used: {reason}. Look whether the device is there, and whether its driver is \
         installed and new enough for this build of Burn; what its thread has printed says more"
    )]
    DeviceUnavailable {
        /// The device.
        device: String,
        /// What is known.
        reason: String,
    },

    /// A device whose server does not answer any more.
    #[error(
        "{device} does not answer: {reason}. What is on it is lost, with the parameters of this step; go on from the \
         last checkpoint. The output of the server may say more"
    )]
    DeviceLost {
        /// The device.
        device: String,
        /// What Burn says.
        reason: String,
    },

    /// A device that can't compute in a float type.
    #[error(
        "{device} can't compute in {dtype}: create the model in another float type (`supports_dtype` of \
         the device tells in which), or on another device"
    )]
    FloatTypeNotSupported {
        /// The float type.
        dtype: String,
        /// The device.
        device: String,
    },

    /// A device gives wrong results.
    #[error(
        "{device} gives wrong results in {dtype}: {found}. A kernel may not have compiled, and then the device's \
         thread has printed why. Use another float type, or another device"
    )]
    WrongResults {
        /// The float type.
        dtype: String,
        /// The device.
        device: String,
        /// What was computed.
        found: String,
    },

    /// The device has failed to compute the loss: a kernel, or the memory for it.
    #[error(
        "the device has not computed the loss: {reason}. No parameter was updated; if the device has no memory \
         left, make the batch smaller, use gradient checkpointing, or offload"
    )]
    LossNotComputed {
        /// What the device says.
        reason: String,
    },

    /// The device has failed to compute a gradient: a kernel, or the memory for it. It was asked before the gradient
    /// was used.
    #[error(
        "the device has not computed the gradient of parameter `{path}`: {reason}. The parameter and its \
         optimizer state are those of its last update; if the device has no memory left, make the batch \
         smaller, use gradient checkpointing, or offload more"
    )]
    GradientNotComputed {
        /// Path of the parameter.
        path: String,
        /// What the device says.
        reason: String,
    },

    /// A kernel that computes the new value of a parameter failed.
    #[error(
        "the device has not computed the new value of parameter `{path}`: {reason}. The parameter is lost if it was \
         updated in this step; go on from the last checkpoint"
    )]
    NotComputed {
        /// Path of the first parameter found.
        path: String,
        /// What the device says.
        reason: String,
    },

    /// One trainable parameter stands at two places of the module.
    #[error(
        "parameter {id} appears twice in the module, as `{first}` and as `{second}`: Burn's \
         optimizer would step one of them only. Keep it in one place and use its value in both, \
         or give the copy an id of its own"
    )]
    DuplicateParameter {
        /// The id both places share.
        id: ParamId,
        /// Path of the first.
        first: String,
        /// Path of the second.
        second: String,
    },

    /// A parameter holds a tensor that autodiff has computed from others.
    #[error(
        "parameter `{path}` is not a leaf of the autodiff graph: its value was computed from other tracked \
         tensors. Detach it (`param.map(|value| value.detach())`), and let it require a gradient if it \
         is to be trained"
    )]
    NotALeaf {
        /// Path of the first parameter found.
        path: String,
    },

    /// The model is already in fused form: it was cloned out of a training step.
    #[error(
        "parameter `{path}` belongs to a model cloned out of a fused step: use \
         `FusedOptimizer::model()` to get an ordinary model"
    )]
    AlreadyFused {
        /// Path of the first parameter found.
        path: String,
    },

    /// A quantized parameter under an adapter was thawed, and codes can't be trained.
    #[error(
        "parameter `{path}` is quantized and was thawed: its codes can't be trained. Thaw all but it \
         (`unfreeze_group(ParamGroup::all().exclude(..))`), or make an ordinary weight of it (`Module::materialize`)"
    )]
    QuantizedInTraining {
        /// Path of the first parameter found.
        path: String,
    },

    /// The loss is not part of an autodiff graph.
    #[error(
        "the loss is not tracked by autodiff: it depends on no trainable parameter of the model \
         (is everything frozen, or the loss detached?)"
    )]
    LossNotTracked,

    /// The backward pass reached none of the model's parameters.
    #[error(
        "the loss depends on no trainable parameter of the model: none of its {parameters} \
         parameters got a gradient, and nothing was updated. Compute it with the model that the closure is given, and \
         detach no output of it"
    )]
    LossWithoutParameters {
        /// The number of trainable parameters.
        parameters: usize,
    },

    /// A largest norm that nothing can be clipped to.
    #[error(
        "gradients can't be clipped to a global norm of {max_norm}: that of `GlobalNormClippingConfig` must be positive"
    )]
    MaxNorm {
        /// The norm asked for.
        max_norm: f64,
    },

    /// A loss scale that is out of range.
    #[error(
        "the loss can't be scaled by {scale:e}: `initial_scale` must be a positive finite f32 with a finite reciprocal"
    )]
    LossScale {
        /// The scale asked for.
        scale: f64,
    },

    /// A growth interval of zero steps.
    #[error(
        "the loss scale can't grow after 0 good steps: set `growth_interval` to 1 or more, or to \
         `None` for a static scale"
    )]
    GrowthInterval,

    /// Policies that make no sense together.
    #[error("these policies make no sense together: {reason}")]
    Combination {
        /// Why, and what to do.
        reason: &'static str,
    },

    /// An optimizer whose state can't take the gradients of micro-batches with these options.
    #[error("the optimizer can't accumulate in its state: {reason}")]
    NotInState {
        /// Why, and what to do.
        reason: &'static str,
    },

    /// The policies run the forward pass twice, and the closure runs once.
    #[error(
        "exact clipping and `Overflow::SkipStep` run the forward pass twice, and `step` takes a \
         closure that runs once: use `step_repeatable`, or `GlobalNormClippingConfig::ExactInBuffer`, in which \
         the gradients wait, or `GlobalNormClippingConfig::Lagged` and `Overflow::SkipParameter`"
    )]
    RunsTwice,

    /// Random numbers that should have come twice did not: another thread has drawn from Burn's
    /// generator, which all threads of the process share.
    #[error(
        "{place} did not compute the same as the first, so it drew other random numbers: another thread used Burn's random \
         generators, which all threads share, or the closure has a generator of its own or took another branch. {unmoved}. \
         Draw the noise of a batch in the closure of the step, or in the batcher from a generator of its own (the crate \
         `rand`); a closure must compute the same from its inputs whenever it runs"
    )]
    RandomNumbers {
        /// What saw them the second time.
        place: String,
        /// Which parameters have kept their values.
        unmoved: String,
    },

    /// The second run of a block under gradient checkpointing read other parameters than its first.
    #[error(
        "{} run of the recomputed block {name}{} read parameter `{path}`, and the other run did not: its closure took \
         another branch. Its parameters and those that only blocks before it use have not moved; those behind it may \
         have. A closure must read the same parameters whenever it runs: draw what decides outside of the block, and \
         capture it, or pass it as a `Constant`",
        ["the first", "the second"][usize::from(*is_second)],
        numbered(*block)
    )]
    BlockReads {
        /// Number of the block in the pass, counted from 0 in the order of the first runs; `None` for a block in another.
        block: Option<usize>,
        /// Module and type of the block.
        name: String,
        /// Path of the first parameter that one run read alone.
        path: String,
        /// `true` if the second run read it, `false` if the first did.
        is_second: bool,
    },

    /// Another training held the lock of Burn's random generators for too long.
    #[error(
        "the random generators were locked by the forward pass of another training for {waited:?}: don't wait for another step \
         in the closure of a step, and call it before or after"
    )]
    RandomNumbersLocked {
        /// How long the other held the lock.
        waited: std::time::Duration,
    },

    /// A step from accumulated gradients without any.
    #[error(
        "there are no accumulated gradients to step with: call `accumulate` before \
         `step_accumulated`"
    )]
    NothingAccumulated,

    /// A step in parts without a part that has items.
    #[error(
        "no part of the batch has an item: give `step_in_parts` at least one part with a number of items above zero"
    )]
    NoItems,

    /// The backward pass of a micro-batch broke off when it had added to accumulated gradients, which have one buffer.
    #[error(
        "a micro-batch failed ({reason}) after a part of it had been added to the accumulated gradient of parameter \
         `{path}`: all accumulated gradients are dropped. Begin again with the first micro-batch since the last step"
    )]
    AccumulatedLost {
        /// Path of the parameter; of several, the first by name.
        path: String,
        /// What has ended the backward pass.
        reason: String,
    },

    /// The gradients were measured, and not used.
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

    /// The global norm of the gradients is not finite, and was known only after they were used: lagged clipping on a
    /// device that computes on its own.
    #[error(
        "the global norm of the gradients is {norm}, because the gradient of parameter `{path}` is not finite, and \
         parameters were updated with it: go on from the last checkpoint. Look for the first loss that is not finite, \
         lower the learning rate, or clip with `GlobalNormClippingConfig::Exact`, which measures before it updates"
    )]
    UpdatedNotFinite {
        /// The norm.
        norm: f64,
        /// Path of the first parameter, by name, whose gradient is not finite.
        path: String,
    },

    /// A closure that runs the backward pass itself, or a `TrainStep`, returned a gradient of its own for a parameter that
    /// the backward pass steps.
    #[error(
        "the gradients that the training step returned have one for parameter `{path}`, which was stepped in the backward \
         pass with its own gradient already: don't edit `TrainOutput::grads`, change gradients in a hook (`with_hook`), \
         which sees each before it is used"
    )]
    GradientReturned {
        /// Path of the parameter; of several, the first of the module.
        path: String,
    },

    /// A hook, or lagged clipping, stopped the step at a gradient with an infinite element, or one that is not a number.
    #[error(
        "the gradient of parameter `{path}` is not finite: it and every parameter that the forward pass read \
         earlier were not updated. Look for the first loss that is not finite, or lower the \
         learning rate"
    )]
    GradientNotFinite {
        /// Path of the parameter.
        path: String,
    },

    /// A hook stopped the step for a reason of its own.
    #[error("a hook stopped the step at parameter `{path}`: {reason}")]
    StoppedByHook {
        /// Path of the parameter.
        path: String,
        /// What the hook says.
        reason: String,
    },

    /// A hook returned something else than the gradient of its parameter.
    #[error(
        "a hook returned {found} as the gradient of parameter `{path}`, which is {expected}: return one of the same \
         shape, dtype and device. The parameter was not updated"
    )]
    HookedGradient {
        /// Path of the parameter.
        path: String,
        /// Shape, dtype and device of the gradient that the hook was given.
        expected: String,
        /// Those of what it returned.
        found: String,
    },

    /// A budget of bytes for steps that no block was recomputed in.
    #[error(
        "there is no recomputed block in the recording: record a step of a fused optimizer whose \
         model calls `gradient_checkpointing`, without keeping activations"
    )]
    NoBlocks,

    /// A recording that lost its end.
    #[error(
        "the end of the recording is missing: {lost} events did not fit in its log. Record a single step, or a single \
         dry run"
    )]
    IncompleteRecording {
        /// How many.
        lost: usize,
    },

    /// A recording that is not what a recorder wrote.
    #[error("{reason}")]
    UnusableRecording {
        /// What is wrong with it.
        reason: String,
    },

    /// A budget of bytes that gradient checkpointing can't keep.
    #[error(
        "with all blocks recomputed a step takes {least} bytes, more than the budget of {budget}: \
         make the batch or the blocks smaller"
    )]
    Budget {
        /// The bytes asked for.
        budget: usize,
        /// The peak of the recording.
        least: usize,
    },

    /// A training that can't be divided between a device and the host in this way.
    #[error("the training can't be offloaded: {reason}")]
    Offload {
        /// Why, and what to do.
        reason: String,
    },

    /// A config of an average of the weights with a value out of range.
    #[error("the weights can't be averaged: {reason}")]
    Averaging {
        /// Why, and what to do.
        reason: String,
    },

    /// The model is to be computed with in one float type, and has a parameter of another that stays as it is.
    #[error(
        "`FusedConfig::compute_dtype` is {compute_dtype}, and parameter `{path}` stays {dtype}, since it is frozen, a running \
         statistic, or carries a reparameterization: cast it, and have the closure cast its inputs to {compute_dtype}, too, or \
         leave `compute_dtype` out"
    )]
    ComputeDtype {
        /// Path of the parameter in the model.
        path: String,
        /// Its type.
        dtype: String,
        /// That which the model is to compute in.
        compute_dtype: String,
    },

    /// A weight that could not come over to the device, or a gradient that could not leave it.
    #[error(
        "parameter `{path}` or its gradient could not be moved from one device to the other: {reason}. If a device has no \
         memory left, offload more, or make the batch or the blocks smaller. With offload, its value and optimizer state are on \
         the host, as of the last update"
    )]
    Transfer {
        /// Path of the parameter.
        path: String,
        /// What the device says.
        reason: String,
    },

    /// Devices, batches or options that a training on several devices can't work with.
    #[error("the replicas can't be trained: {reason}")]
    Replicas {
        /// Why, and what to do.
        reason: String,
    },

    /// One of several ranks can't go on with a step, which has ended on all of them.
    #[error("rank {rank} ({device}): {error}")]
    Rank {
        /// The rank, counted from 0.
        rank: usize,
        /// Its device.
        device: String,
        /// What ended the step there.
        error: Box<FusedError>,
    },

    /// One of several ranks panicked in a step, which has ended on all of them.
    #[error(
        "rank {rank} ({device}) panicked, which has ended the step on all ranks: {message}. Parameters whose \
         gradients had come from all ranks by then are updated, all others unchanged"
    )]
    RankPanicked {
        /// The rank, counted from 0.
        rank: usize,
        /// Its device.
        device: String,
        /// What the panic says.
        message: String,
    },

    /// Loss scaling is on, and what runs the backward pass did not scale its loss.
    #[error(
        "loss scaling is on, and the model's `TrainStep::step`, or the closure of \
         `step_with_backward`, runs the backward pass of a loss that is not scaled: call \
         `backburn::scale_loss(loss).backward()`. No parameter was updated"
    )]
    LossNotScaled,

    /// An optimizer record holds the state of a parameter that the model does not have.
    #[error(
        "the optimizer record holds the state of parameter {id} (`{path}`), which the model does \
         not have: load the model record that was saved with it first"
    )]
    ForeignRecord {
        /// The id in the record.
        id: ParamId,
        /// The path in the record, empty if it has none.
        path: String,
    },

    /// An optimizer record holds a state of another rank than its parameter.
    #[error(
        "the optimizer record holds a state of rank {found} for parameter `{path}` of rank \
         {expected}: it was saved with another model. Load the record that was saved with this one"
    )]
    RecordRank {
        /// Path of the parameter in the model.
        path: String,
        /// Rank of the parameter.
        expected: usize,
        /// Rank in the record.
        found: usize,
    },

    /// An optimizer record holds a state of another shape than its parameter.
    #[error(
        "the optimizer record holds `{state}` of shape {found:?} for parameter `{path}` of shape \
         {expected:?}: it was saved with another model, and nothing of it was loaded. Load the record that was saved \
         with this one"
    )]
    RecordShape {
        /// Path of the parameter in the model.
        path: String,
        /// Name of the state, as the optimizer calls it.
        state: String,
        /// Shape of the parameter.
        expected: Vec<usize>,
        /// Shape in the record.
        found: Vec<usize>,
    },

    /// An optimizer record holds what the optimizer has no place for.
    #[error(
        "the optimizer record holds `{state}` for parameter `{path}`, which this optimizer can't \
         load: it was saved by another optimizer, or by one with other parameter groups. Nothing of it \
         was loaded. To go on without it, load no record"
    )]
    RecordOfAnotherOptimizer {
        /// Path of the parameter in the record.
        path: String,
        /// Name of the state, as the optimizer that wrote it calls it.
        state: String,
    },

    /// An optimizer record that can't be read.
    #[error(
        "the optimizer record can't be read: {reason}. Load one that Burn or backburn has written, or go on without it"
    )]
    UnreadableRecord {
        /// What Burn says about it.
        reason: String,
    },
}

impl FusedError {
    /// The second run of a block was not like the first.
    pub(crate) fn recomputation_differs(block: &str) -> Self {
        Self::RandomNumbers {
            place: format!("the second run of the recomputed block {block}"),
            unmoved: "Its parameters and those that only blocks before it use have not moved; those behind it may have"
                .to_string(),
        }
    }

    /// The two passes of a step are not alike.
    pub(crate) fn passes_differ() -> Self {
        Self::RandomNumbers {
            place: "the second of the two passes of a step".to_string(),
            unmoved: "The parameters whose gradients had not arrived have not moved".to_string(),
        }
    }
}

/// The number of a block, behind its name.
fn numbered(block: Option<usize>) -> String {
    match block {
        Some(block) => format!(" (number {block}, counted from 0)"),
        None => " (in another block)".to_string(),
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
            OptimError::Averaging { reason } => Self::Averaging { reason },
            OptimError::UnreadableRecord { reason } => Self::UnreadableRecord { reason },
        }
    }
}

debug_prints_message!(FusedError);
