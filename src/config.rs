//! How to train.

use burn::config::Config;
use burn::tensor::FloatDType;

use crate::error::FusedError;
use crate::layout::Request;
use crate::offload::OffloadConfig;
use crate::optim::WeightAveragingConfig;
use crate::pass::GradientCheckpointingConfig;
use crate::policy::{GlobalNormClippingConfig, LossScalingConfig, Overflow};
use crate::replica::{Ownership, Sharding};

/// How to train: one value for [`FusedOptimizer`](crate::FusedOptimizer::with_config),
/// [`FusedReplicas`](crate::FusedReplicas::with_config) and `FusedLearner`, which can be saved, printed and changed.
///
/// ```
/// use backburn::{FusedConfig, FusedOptimizer, GlobalNormClippingConfig, LossScalingConfig};
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Device};
/// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
///
/// let config = FusedConfig::new()
///     .with_clipping(Some(GlobalNormClippingConfig::Exact(1.0)))
///     .with_loss_scaling(Some(LossScalingConfig::new()));
/// let fused = FusedOptimizer::new(model, SgdConfig::new().init())?.with_config(config)?;
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// What is no number or choice is given elsewhere: devices, hooks, and the optimizer, whose state
/// [accumulates](crate::FusedOptimizer::accumulating_in_state) or does not.
#[derive(Config, Debug, PartialEq)]
pub struct FusedConfig {
    /// Clipping of the gradients of every step by their global norm; over several devices, the norm of the sums.
    ///
    /// [`StepReport`](crate::StepReport) tells the norm and the coefficient. The norm that lagged clipping uses is part of
    /// the optimizer's record. Clipping by value, and by the norm of each parameter's own gradient, is Burn's, set on the
    /// optimizer's config, and comes after this one.
    pub clipping: Option<GlobalNormClippingConfig>,
    /// Scaling of the loss of every pass, and of the gradients back.
    ///
    /// [`StepReport`](crate::StepReport) tells the scale and whether the gradients overflowed; one overflow on any device
    /// counts for all. The scale is part of the optimizer's record, and of no other way to hand the optimizer on.
    pub loss_scaling: Option<LossScalingConfig>,
    /// The float type in which the model computes; without it, that of its parameters. With
    /// [`BF16`](burn::tensor::FloatDType::BF16) and a model in f32 this is mixed precision with master weights: the weights rest in f32, are
    /// stepped in f32 and saved in f32, and a copy in bf16 is made for each read. With [`F32`](burn::tensor::FloatDType::F32) and a
    /// model in bf16, whose low bits an optimizer [keeps](crate::optim::WeightFormat), the model rests in two bytes a weight where
    /// computing in bf16 is slow. What the closure computes with besides (inputs, constants) is to be in this type; gradients are
    /// taken to the type of the parameter before they are used. Frozen parameters, running statistics and trained LoRA bases must
    /// have it.
    pub compute_dtype: Option<FloatDType>,
    /// Whether the gradients of micro-batches are added up in f32 where those of a parameter are in bf16 or f16, and so those of
    /// blocks that run twice and share a parameter, as the chunks of
    /// [`LinearCrossEntropyLoss`](crate::LinearCrossEntropyLoss) share the head; the sum is rounded once, when it is used.
    /// Such a buffer takes 4 bytes an element. Without it sums are in the type of the gradients, as those of Burn's
    /// [`GradientsAccumulator`](burn::optim::GradientsAccumulator) and of its backward pass. Gradients of several devices
    /// are added up in their own type in a step that has no micro-batches before it, unless they
    /// [wait](crate::GlobalNormClippingConfig::ExactInBuffer) there for their norm.
    #[config(default = false)]
    pub full_precision_accumulation: bool,
    /// An average of the weights in f32, exponential (EMA) or uniform (SWA). It is stored where the weight is, on the host or on
    /// the device of its owner, is updated after each step of the parameter, and is part of the optimizer's record.
    pub averaging: Option<WeightAveragingConfig>,
    /// Which of the blocks under [`gradient_checkpointing`](crate::gradient_checkpointing()) run twice, and where their
    /// inputs wait. By default all do, and inputs wait where they are.
    #[config(default = "GradientCheckpointingConfig::new()")]
    pub gradient_checkpointing: GradientCheckpointingConfig,
    /// What waits in host memory while the model computes on a device, or several: the optimizer state, the updates, or the
    /// weights of blocks, too.
    pub offload: Option<OffloadConfig>,
    /// What each of several devices keeps of the parameters that it does not own. On one device this says nothing, nor does
    /// `ownership`.
    #[config(default = "Sharding::State")]
    pub sharding: Sharding,
    /// Which of several devices owns a parameter.
    #[config(default = "Ownership::ByParamId")]
    pub ownership: Ownership,
    /// The most bytes of gradients and weights that each device may have on their way at once, between where parameters are kept and
    /// where they are computed with. A single one that is larger goes alone.
    ///
    /// - With [offload](Self::offload) these are gradients that have left the device and are not used yet, for which the backward pass
    ///   waits, and weights that are fetched before their block runs, which otherwise come when they are read. Under
    ///   [`Offload::States`](crate::Offload::States) it is one state on either way, which otherwise travels in its update.
    /// - With [inputs of blocks on the host](GradientCheckpointingConfig::offload_inputs) these leave and are fetched in the same way.
    /// - With several devices these are gradients that a device has sent more than the slowest: they wait at their owner. With N devices
    ///   that read parameters in the same order at most (N - 1) times this number of bytes and one gradient wait there. Devices
    ///   that compute gradients in another order, or have none for many parameters, let more of them wait.
    ///
    /// By default a quarter more than the largest parameter has, and the weights of one block: so one gradient is used while the
    /// next is computed.
    pub max_bytes_in_flight: Option<usize>,
}

impl Default for FusedConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl FusedConfig {
    /// Refuses what makes no sense by itself or together, or with an optimizer that accumulates `in_state`.
    pub(crate) fn check(&self, in_state: bool) -> Result<(), FusedError> {
        if let Some(clipping) = self.clipping {
            clipping.check()?;
        }
        if let Some(scaling) = self.loss_scaling {
            scaling.check()?;
        }
        if let Some(reason) = self.conflict(in_state) {
            return Err(FusedError::Combination { reason });
        }
        if let Some(averaging) = &self.averaging {
            averaging.check()?;
        }
        if let Some(offload) = &self.offload {
            offload.check()?;
            if offload.offloads_states() && in_state {
                return Err(FusedError::Offload {
                    reason: "a state that waits is a record, which does not hold a group of micro-batches that \
                             has begun: use `Offload::Updates`, or accumulate in a buffer, which waits in host \
                             memory, too"
                        .to_string(),
                });
            }
        }
        Ok(())
    }

    /// Why options make no sense together, or none at all.
    fn conflict(&self, in_state: bool) -> Option<&'static str> {
        let exact = self.clipping.is_some_and(|clipping| clipping.is_exact());
        let overflow = self.loss_scaling.map(|scaling| scaling.overflow);
        Some(match (in_state, overflow) {
            (true, _) if self.full_precision_accumulation => {
                "gradients that go into the optimizer state are in no buffer whose precision could be \
                 chosen: use one of the two"
            }
            (true, _) if exact => {
                "exact clipping needs the norm of the summed gradients, and those that went into \
                 the optimizer state are gone: use `GlobalNormClippingConfig::Lagged`, or accumulate in \
                 a buffer"
            }
            (true, Some(Overflow::SkipStep)) => {
                "a step can't be skipped when some of its gradients are in the optimizer state \
                 already: use `Overflow::SkipParameter`, or accumulate in a buffer"
            }
            (_, Some(Overflow::SkipParameter)) if exact => {
                "exact clipping measures all gradients before the first update, so the whole step \
                 can be skipped: use `Overflow::SkipStep`"
            }
            _ if self.compute_dtype == Some(FloatDType::Flex32) => {
                "`Flex32` is a way of some kernels, and no type to compute a model in: set `compute_dtype` to \
                 `F32`, `BF16` or `F16`"
            }
            _ => return None,
        })
    }

    /// The number of elements from which the states of parameters are kept on the host.
    pub(crate) fn offloaded_state_elements(&self) -> Option<usize> {
        let offload = self.offload.as_ref()?;
        offload.offloads_states().then_some(offload.min_elements)
    }

    /// What it asks of where parameters rest.
    pub(crate) fn layout(&self) -> Request {
        Request {
            compute_dtype: self.compute_dtype,
            offload: self.offload.clone(),
            max_bytes_in_flight: self.max_bytes_in_flight,
            offload_inputs: self.gradient_checkpointing.offload_inputs,
        }
    }
}
