//! Methods that both front ends share. A macro writes them: methods of a trait would need an import in every program.

/// Implements the methods of a front end that call no closure. They delegate to the core.
macro_rules! trainer {
    ($trainer:ident) => {
        impl<M: burn::module::Module> $trainer<M> {
            /// Sets the config of the training, on the same devices.
            ///
            /// Model, optimizer state and hooks stay, and so do gradients that were accumulated in the optimizer state. Gradients in
            /// the buffer, averages, the loss scale and the norm of lagged clipping are dropped.
            ///
            /// # Errors
            ///
            /// An error drops the training, because it takes `self`: save a checkpoint before.
            ///
            /// - An option is out of range (a norm or scale that is not positive, an interval of zero), or contradicts
            ///   another option or an optimizer that accumulates in its state.
            /// - An option of several devices is set on `FusedOptimizer`.
            /// - With offload: the compute device is the host itself or does not exist; this build has no backend for one
            ///   of them; or the device can't compute in a float type that the model needs.
            /// - With a compute type: a frozen parameter, a running statistic or a trained LoRA base has another type.
            /// - With offload: the host has too little free memory, or the worker threads can't be started.
            pub fn with_config(
                mut self,
                config: crate::FusedConfig,
            ) -> Result<Self, crate::FusedError> {
                self.core = self.core.with_config(config, None)?;
                Ok(self)
            }

            /// Returns the config of the training.
            pub fn config(&self) -> &crate::FusedConfig {
                &self.core.policies.config
            }

            /// Calls `hook` with every complete gradient of the parameters in `group`, after earlier hooks. With
            /// several devices it receives the sum of their gradients, on the thread of one of them, with the stored
            /// value.
            #[must_use]
            pub fn with_hook(
                mut self,
                group: burn::module::ParamGroup,
                hook: impl crate::GradientHook,
            ) -> Self {
                self.core
                    .policies
                    .hooks
                    .0
                    .push((group, std::sync::Arc::new(hook)));
                self
            }

            /// Reports the events of each step to `observer`, after earlier observers. With
            /// [offload](crate::FusedConfig::offload), updates then run on the thread of the backward pass.
            #[must_use]
            pub fn with_observer(mut self, observer: impl crate::StepObserver) -> Self {
                let observers = &mut self.core.policies.observers;
                observers.0.push(std::sync::Arc::new(observer));
                self
            }

            /// Changes the model between two steps, for example to freeze or unfreeze parameters, load other weights,
            /// or remove a layer. `change` receives an ordinary [`model`](Self::model).
            ///
            /// ```
            /// # use backburn::FusedOptimizer;
            /// # use burn::{module::Module, module::ParamGroup, nn::LinearConfig, optim::SgdConfig, tensor::Device};
            /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
            /// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?;
            /// fused.change_model(|model| model.freeze_group(ParamGroup::from_predicate("bias")))?;
            /// # Ok::<(), backburn::FusedError>(())
            /// ```
            ///
            /// The optimizer keeps the state of every parameter, including frozen ones. The states of parameters that
            /// are removed or have another shape are dropped. Accumulated gradients are dropped, except those in the
            /// optimizer state. A parameter that moves to another path keeps its parameter group, as in Burn. A record that is
            /// saved later puts its state into the group of the new path, so give both paths one group.
            ///
            /// A batch normalization that is frozen here computes without the last update of its running statistics, as in
            /// a stock loop. [`valid`](Self::valid) merges that update. In a [checkpointed
            /// block](crate::gradient_checkpointing()), and on several devices, the update is already merged.
            ///
            /// A parameter with the id of a removed one, or in another shape, starts with a fresh state. In this case the other states are
            /// saved to a record and loaded again, as in [`load_record`](Self::load_record), and states with accumulated
            /// gradients start a new group of micro-batches.
            ///
            /// # Errors
            ///
            /// Returns the errors of [`new`](Self::new) on the model that `change` returns, and
            /// [`FusedError::Config`](crate::FusedError::Config) if it moves a parameter with an offloaded state into another
            /// parameter group. [`FusedError::UnsupportedParameter`](crate::FusedError::UnsupportedParameter) if a removed
            /// parameter returns, or changes its shape, and the other states don't survive a record. On an error nothing has
            /// changed.
            pub fn change_model(
                &mut self,
                change: impl FnOnce(M) -> M,
            ) -> Result<(), crate::FusedError> {
                self.core.change_model(change)
            }

            /// Updates with the accumulated gradients, without a forward and backward pass. For loops that can't
            /// tell in advance which micro-batch is the last.
            ///
            /// # Errors
            ///
            /// If no gradients were accumulated since the last step, a gradient or the norm is not finite, or a hook stops the
            /// step. With [`ExactInBuffer`](crate::GlobalNormClippingConfig::ExactInBuffer) an error drops the accumulated
            /// gradients; otherwise it drops them if they are not finite and no loss scale can be the cause.
            pub fn step_accumulated(
                &mut self,
                learning_rate: impl Into<burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate>,
            ) -> Result<(), crate::FusedError> {
                self.core.step_accumulated(learning_rate.into())
            }

            /// Drops the gradients that [`accumulate`](Self::accumulate) has summed since the last step.
            ///
            /// Gradients in the optimizer state ([`accumulating_in_state`](Self::accumulating_in_state)) stay there.
            pub fn drop_accumulated(&mut self) {
                self.core.drop_accumulated();
            }

            /// Returns an ordinary Burn model with the current values, to save or to validate. It is on the compute
            /// device, on the first of several devices, or on the host if a part of the training is offloaded. With
            /// [`Sharding::Full`](crate::Sharding::Full) all weights are transferred to that device.
            ///
            /// The tensors are shared, not copied. If the model is kept across steps, the next update copies each
            /// parameter once, and the model keeps the old values. It also keeps its running statistics, which include
            /// the last update of every thread.
            ///
            /// # Panics
            ///
            /// Panics if a device that holds a part of the model is lost.
            pub fn model(&self) -> M {
                self.core.model()
            }

            /// Returns the current model for inference, without autodiff, like [`Module::valid`](burn::module::Module::valid)
            /// on the model that [`model`](Self::model) returns. Later steps do not change its running statistics.
            ///
            /// It computes as the training does: on its device, and in [`compute_dtype`](crate::FusedConfig::compute_dtype). Its record holds the
            /// weights as they are stored, in full precision. Adapters on offloaded weights are an exception: they are merged into a copy of the
            /// weights on the host, and the trained weights are in `compute_dtype`. Save [`model`](Self::model) instead.
            ///
            /// # Panics
            ///
            /// Panics if a device that holds a part of the model is lost.
            pub fn valid(&self) -> M {
                self.core.valid()
            }

            /// Returns an ordinary Burn model with the [averages](crate::FusedConfig::averaging) in place of the
            /// weights, to validate or to save.
            ///
            /// Frozen parameters and running statistics have their current values; later steps do not change them. Averages are cast to the type of the parameter.
            ///
            /// # Panics
            ///
            /// Panics if a device that holds a part of the model is lost.
            pub fn averaged(&self) -> M {
                self.core.averaged()
            }

            /// Returns an ordinary model and Burn's optimizer with its state.
            ///
            /// Averages are dropped, and so are accumulated gradients. Those in the optimizer state stay: the next step of the
            /// optimizer applies them.
            pub fn into_parts(self) -> (M, burn::optim::ModuleOptimizer) {
                self.core.into_parts()
            }

            /// Returns the optimizer state as a Burn record with the current values. All devices share one record.
            /// (Burn's own record reads CubeCL devices later, so it could contain values of later steps.)
            ///
            /// # Panics
            ///
            /// Panics with the device's error if a CubeCL device has failed and can't be read.
            pub fn to_record(&self) -> burn::optim::OptimizerRecord {
                self.core.to_record()
            }

            /// Loads the optimizer state. Accumulated gradients are dropped.
            ///
            /// # Errors
            ///
            /// If the record was saved with another model: it contains a state for a parameter that the model does not
            /// have, or of another shape. Also if it was saved by another optimizer whose state this one can't load, or is
            /// damaged. On an error the state is unchanged. (`Adam` and `AdamW` have the same state, and so have
            /// `Muon` and `Sgd` with momentum: their records can't be distinguished. A
            /// [`Checkpoint`](crate::Checkpoint) distinguishes the latter.)
            ///
            /// Burn loads states in the default float type of its default device, so those of f64 parameters
            /// lose precision. The optimizers of [`backburn::optim`](crate::optim) cast them to the type of the
            /// parameter in the next step. Burn's own optimizers panic in the next step if the types differ.
            pub fn load_record(
                &mut self,
                record: burn::optim::OptimizerRecord,
            ) -> Result<(), crate::FusedError> {
                self.core.load_record(record)
            }

            /// Returns the report of the last pass on all devices together; of a step of several passes, of the last one. It is
            /// empty (zeros and `None`) if that pass failed or the step was refused.
            pub fn last_step(&self) -> &crate::StepReport {
                self.core.last_step()
            }
        }

        impl<M: burn::module::Module> crate::fused::Trainer for $trainer<M> {
            type Model = M;

            fn core(&self) -> &crate::fused::core::Core<M> {
                &self.core
            }

            fn core_mut(&mut self) -> &mut crate::fused::core::Core<M> {
                &mut self.core
            }
        }

        impl<M: burn::module::Module> std::fmt::Debug for $trainer<M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(super) use trainer;
