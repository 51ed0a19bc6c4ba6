use backburn_base::config_struct;
use backburn_optim::WeightAveragingConfig;
use burn::tensor::FloatDType;

use crate::error::FusedError;
use crate::offload::OffloadConfig;
use crate::pass::GradientCheckpointingConfig;
use crate::placement::PlacementPolicy;
use crate::policy::{GlobalNormClippingConfig, LossScalingConfig, Overflow};
use crate::replica::{Ownership, Sharding};

config_struct! {
    /// Options of a training, for [`FusedOptimizer`](crate::FusedOptimizer::with_config),
    /// [`FusedReplicas`](crate::FusedReplicas::with_config) and `FusedLearner`. The config can be saved, printed and changed.
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
    /// Devices, hooks and the optimizer (also one that [accumulates in its
    /// state](crate::FusedOptimizer::accumulating_in_state)) are passed to the training itself.
    #[derive(Debug, PartialEq)]
    pub struct FusedConfig {
        /// Clipping of the gradients of each step by their global norm; on several devices, by the norm of the summed gradients.
        ///
        /// [`StepReport`](crate::StepReport) contains the norm and the coefficient. The norm that lagged clipping uses is part of
        /// the optimizer's record. Clipping by value, or by the norm of a single gradient, is set on the config of Burn's optimizer and
        /// applied after this clipping.
        pub clipping (with_clipping): Option<GlobalNormClippingConfig> = None,
        /// Scaling of the loss in each pass. Gradients are unscaled before they are applied.
        ///
        /// [`StepReport`](crate::StepReport) contains the scale and reports an overflow; an overflow on one device
        /// counts for all. The scale is saved in the optimizer's record only.
        pub loss_scaling (with_loss_scaling): Option<LossScalingConfig> = None,
        /// Float type in which the model computes; by default the type of its parameters.
        ///
        /// - [`BF16`](burn::tensor::FloatDType::BF16) with a model in f32 is mixed precision with master weights: the weights are stored,
        ///   stepped and saved in f32, and each read makes a copy in bf16.
        /// - [`F32`](burn::tensor::FloatDType::F32) with a model in bf16, whose low bits the optimizer
        ///   [stores](crate::optim::WeightFormat), takes two bytes per weight on devices where computing in bf16 is slow.
        ///
        /// Inputs and constants in the closure must have this type, and so must frozen parameters, running statistics and trained LoRA bases.
        /// Gradients are cast to the type of the parameter before they are applied.
        pub compute_dtype (with_compute_dtype): Option<FloatDType> = None,
        /// If `true`, gradients in bf16 or f16 are accumulated in f32, over micro-batches and over checkpointed blocks that share a
        /// parameter, as the chunks of [`LinearCrossEntropyLoss`](crate::LinearCrossEntropyLoss) share the head. The sum of a
        /// pass is rounded to the type of its gradients, and the sum over micro-batches when it is applied. Without micro-batches,
        /// gradients of several devices are then summed in the wider of their type and the type of the parameter, unless they are
        /// [buffered](crate::GlobalNormClippingConfig::ExactInBuffer) for their norm.
        ///
        /// The buffer takes 4 bytes per element. If `false`, sums over blocks are in the type of the gradients, as in Burn's backward
        /// pass, and sums over devices and micro-batches in the type of the parameter. Without `compute_dtype` that is the type of the
        /// gradients, as in Burn's [`GradientsAccumulator`](burn::optim::GradientsAccumulator).
        pub full_precision_accumulation (with_full_precision_accumulation): bool = false,
        /// An average of the weights, exponential (EMA) or uniform (SWA): in f64 for weights in f64, otherwise in f32. It is
        /// stored at the location of the weight (on the host, or on the device of its owner), updated after steps of the
        /// parameter, and saved in the optimizer's record.
        pub averaging (with_averaging): Option<WeightAveragingConfig> = None,
        /// The [checkpointed blocks](crate::gradient_checkpointing()) that are recomputed, and the location of their inputs until
        /// then. By default all blocks are recomputed, and inputs stay on their device.
        pub gradient_checkpointing (with_gradient_checkpointing): GradientCheckpointingConfig = GradientCheckpointingConfig::new(),
        /// Offload to host memory of the optimizer states, of the updates, or also of the weights of blocks.
        pub offload (with_offload): Option<OffloadConfig> = None,
        /// State that each of several devices stores for parameters that it does not own. `FusedOptimizer` accepts only
        /// the default.
        pub sharding (with_sharding): Sharding = Sharding::State,
        /// Assignment of parameters to several devices. `FusedOptimizer` accepts only the default.
        pub ownership (with_ownership): Ownership = Ownership::ByParamId,
        /// Maximum bytes of gradients and weights in flight for each device, between the storage of the parameters and the
        /// computation. A larger transfer runs alone.
        ///
        /// - With [offload](Self::offload): gradients that were sent to the host and are not applied yet (the backward pass waits for
        ///   them), and weights that are prefetched before their block runs (otherwise they are fetched when they are read). Under
        ///   [`Offload::States`](crate::Offload::States): one state in each direction (otherwise it is transferred during its update).
        /// - With [inputs of blocks on the host](GradientCheckpointingConfig::offload_inputs): those inputs, in the same way.
        /// - With several devices: gradients that a device has sent beyond those of the slowest device; their owner buffers them. If N devices
        ///   read parameters in the same order, an owner buffers at most (N - 1) times this number of bytes and one gradient. If devices
        ///   compute gradients in another order, or have none for many parameters, the owner buffers more.
        ///
        /// The default is 1.25 times the largest parameter for gradients, so that one is applied while the next is computed, 1.25
        /// times the inputs of a block for inputs, and the weights of the next block for weights.
        pub max_bytes_in_flight (with_max_bytes_in_flight): Option<usize> = None,
    }
}

impl FusedConfig {
    /// Returns an error if an option is invalid, or contradicts another option or an optimizer that accumulates `in_state`.
    pub(crate) fn check(&self, in_state: bool) -> Result<(), FusedError> {
        if let Some(clipping) = self.clipping {
            clipping.check()?;
        }
        if let Some(scaling) = self.loss_scaling {
            scaling.check()?;
        }
        if let Some(reason) = self.conflict(in_state) {
            let reason = reason.to_string();
            return Err(FusedError::Config { reason });
        }
        if let Some(averaging) = &self.averaging {
            averaging.check()?;
        }
        if let Some(offload) = &self.offload {
            offload.check()?;
            if offload.offloads_states() && in_state {
                return Err(FusedError::Offload {
                    reason: "an offloaded state is stored as a record, which does not contain the gradients of an \
                    unfinished group of micro-batches: use `Offload::Updates`, or accumulate in a buffer, \
                    which is also in host memory"
                        .to_string(),
                });
            }
        }
        Ok(())
    }

    /// Returns an error if an option of several devices is set.
    pub(crate) fn check_on_one_device(&self) -> Result<(), FusedError> {
        if (self.sharding, self.ownership) == (Sharding::State, Ownership::ByParamId) {
            return Ok(());
        }
        let reason = "`sharding` and `ownership` divide a training among several devices: remove them, or use `FusedReplicas` (a \
            learner: `with_training_strategy`)"
            .to_string();
        Err(FusedError::Config { reason })
    }

    /// Returns the reason why two options contradict each other, if any do.
    fn conflict(&self, in_state: bool) -> Option<&'static str> {
        let exact = self.clipping.is_some_and(|clipping| clipping.is_exact());
        let overflow = self.loss_scaling.map(|scaling| scaling.overflow);
        Some(match (in_state, overflow) {
            (true, _) if self.full_precision_accumulation => {
                "`full_precision_accumulation` sets the precision of a buffer, but gradients that are \
                accumulated in the optimizer state have no buffer: use only one of the two"
            }
            (true, _) if exact => {
                "exact clipping needs the norm of the summed gradients, which are not available after \
                accumulation in the optimizer state: use `GlobalNormClippingConfig::Lagged`, which clips each \
                micro-batch, or accumulate in a buffer"
            }
            (true, Some(Overflow::SkipStep)) => {
                "a step can't be skipped when some of its gradients are already in the optimizer \
                state: use `Overflow::SkipParameter`, or accumulate in a buffer"
            }
            (_, Some(Overflow::SkipParameter)) if exact => {
                "exact clipping measures all gradients before the first update, so the whole step \
                 can be skipped: use `Overflow::SkipStep`"
            }
            _ if self.compute_dtype == Some(FloatDType::Flex32) => {
                "`Flex32` is an accumulation mode of some kernels, not a type for a model: set \
                `compute_dtype` to `F32`, `BF16` or `F16`"
            }
            _ => return None,
        })
    }

    /// Returns the minimum number of elements of a parameter whose state is offloaded; `None` without offload of
    /// states.
    pub(crate) fn offloaded_state_elements(&self) -> Option<usize> {
        let offload = self.offload.as_ref()?;
        offload.offloads_states().then_some(offload.min_elements)
    }

    /// Returns the options that decide where parameters are stored.
    pub(crate) fn placement_policy(&self) -> PlacementPolicy {
        PlacementPolicy {
            compute_dtype: self.compute_dtype,
            offload: self.offload.clone(),
            max_bytes_in_flight: self.max_bytes_in_flight,
            offload_inputs: self.gradient_checkpointing.offload_inputs,
        }
    }
}
