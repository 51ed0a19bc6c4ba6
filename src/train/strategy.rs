use std::collections::HashMap;

use backburn_base::{Parameter, list};
use burn::data::dataloader::split::split_dataloader;
use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, GradientCheckpointingStrategy};
use burn::train::{
    EventProcessorTraining, Learner, LearnerEvent, LearnerModel, LearningCheckpointer,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents,
    ValidLoader,
};

use super::checkout::Checkout;
use super::epoch::{self, Events};
use super::execution::Execution;
use super::front_end::{CloneItem, FrontEnd};
use super::metric::LastStep;
use super::model::FusedModel;
use super::resume;
use crate::error::FusedError;
use crate::fused::{FusedOptimizer, FusedReplicas, Policies};
use crate::replica::Ownership;
use crate::weights::initialize;

/// A strategy for Burn's training, on one device or several, with the optimizer fused into the backward pass.
pub(super) struct FusedStrategy<M: LearnerModel> {
    pub(super) policies: Policies,
    /// The ids of the parameters by path, when each hook was added.
    pub(super) ids_at_hooks: Vec<HashMap<String, ParamId>>,
    pub(super) execution: Execution,
    pub(super) clone_item: Option<CloneItem<M>>,
    pub(super) last_step: LastStep,
}

impl<M: LearnerModel> FusedStrategy<M> {
    /// Fuses `optimizer` into the training of `model` on `devices`.
    fn fuse(
        &self,
        model: M,
        optimizer: ModuleOptimizer,
        devices: &[Device],
    ) -> Result<FrontEnd<M>, FusedError> {
        let mut policies = self.policies.clone();
        let config = &mut policies.config;
        if let Some(ownership) = self.execution.ownership {
            config.ownership = owners(ownership, config.ownership)?;
            let devices = devices.to_vec();
            let fused = FusedReplicas::with_policies(model, optimizer, policies, devices)?;
            return Ok(FrontEnd::Several(Box::new(fused)));
        }
        if self.execution.devices.is_empty() {
            config.check_on_one_device()?;
        }
        let device = Some(&devices[0]);
        let fused = FusedOptimizer::with_policies(model, optimizer, policies, device)?;
        Ok(FrontEnd::One(Box::new(fused)))
    }

    /// Returns an error if the group of a hook names the id of a parameter, and `model` has been loaded with other ids since.
    fn check_hooks(&self, model: &FusedModel<M>) -> Result<(), FusedError> {
        let hooks = self.policies.hooks.0.iter();
        for ((group, _), ids) in hooks.zip(&self.ids_at_hooks) {
            // A group that does not name the previous id treats it as any other.
            let names = |before: ParamId, now: ParamId, path: &str| {
                let [before, now, other] =
                    [before, now, ParamId::new()].map(|id| group.matches(&id, Some(path)));
                before != now && before != other
            };
            let parameters = list(model).into_iter();
            let mut renamed = parameters.filter(|it| {
                let before = ids.get(&*it.path);
                before.is_some_and(|before| names(*before, it.param.id(), &it.path))
            });
            if let Some(Parameter { path, .. }) = renamed.next() {
                return Err(FusedError::Config {
                    reason: format!(
                        "the parameter group of a hook has the id of `{path}`, but a loaded model has the ids of its checkpoint. Use paths \
                        (`ParamGroup::from_predicate`), or make the group after `load_model`"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Fuses the model and the optimizer of `learner`. Checks both, and the states from the checkpoint of epoch
    /// `resumed`.
    fn check_out<'a>(
        &self,
        learner: &'a mut Learner<FusedModel<M>>,
        devices: &[Device],
        resumed: Option<usize>,
        checkpointer: Option<&LearningCheckpointer<FusedModel<M>>>,
    ) -> Result<Checkout<'a, M>, FusedError> {
        if self.policies.config.offload.is_none() && devices.len() == 1 {
            // Burn moves the values that it finds, and draws the others.
            initialize(&learner.model())?;
            learner.fork(&devices[0]);
        }
        log_devices(devices);
        self.check_hooks(&learner.model())?;
        match (resumed, checkpointer) {
            (Some(epoch), Some(checkpointer)) => resume::check(checkpointer, epoch, learner)?,
            (Some(epoch), None) => panic!(
                "the training can't resume from epoch {epoch} without checkpointers: call `with_default_checkpointers` of the builder"
            ),
            (None, _) => {}
        }
        let fuse = |model, optimizer| self.fuse(model, optimizer, devices);
        let checkout = Checkout::new(learner, fuse)?;
        if resumed.is_some() {
            checkout.core().check_loaded_states()?;
        }
        Ok(checkout)
    }

    /// Returns the devices that compute, with autodiff.
    fn training_devices(&self, learner: &Learner<FusedModel<M>>) -> Vec<Device> {
        let of_model = learner.model().devices().into_iter().next();
        let of_model = of_model.unwrap_or_default().autodiff();
        if self.execution.devices.is_empty() {
            return vec![of_model];
        }
        let named = self.execution.devices.iter().cloned();
        named
            .map(|device| device.with_autodiff_context_from(&of_model))
            .collect()
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<FusedModel<M>> for FusedStrategy<M> {
    fn fit(
        &self,
        components: TrainingComponents<FusedModel<M>>,
        mut learner: Learner<FusedModel<M>>,
        dataloader_train: TrainLoader<FusedModel<M>>,
        dataloader_valid: ValidLoader<FusedModel<M>>,
        starting_epoch: usize,
    ) -> (
        FusedModel<M>,
        SupervisedTrainingEventProcessor<FusedModel<M>>,
    ) {
        let devices = self.training_devices(&learner);
        let total_items = dataloader_train.num_items();
        let dataloaders_train = match &devices[..] {
            [device] => vec![dataloader_train.to_device(device)],
            several => split_dataloader(dataloader_train, several),
        };
        let dataloader_valid = dataloader_valid.to_device(&devices[0].clone().inner());
        let mut checkpointer = components.checkpointer;
        let mut early_stopping = components.early_stopping;
        let mut events = Events {
            processor: components.event_processor,
            interrupter: components.interrupter,
        };
        let resumed = components.checkpoint;
        let checkout = self.check_out(&mut learner, &devices, resumed, checkpointer.as_ref());
        let mut checkout = checkout.unwrap_or_else(|error| panic!("{error}"));

        for epoch in starting_epoch..=components.num_epochs {
            events.train(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items,
            });
            let (front_end, learner) = checkout.front_end_and_learner();
            epoch::train(
                front_end,
                learner,
                &dataloaders_train,
                components.grad_accumulation,
                self.clone_item,
                &self.last_step,
                &mut events,
            );
            events.train(LearnerEvent::EndSplit(epoch));
            if events.should_stop() {
                if let Some(interruption) = events.interrupter.interruption() {
                    let reason = interruption.reason.as_deref().unwrap_or("reason unknown");
                    log::info!("training interrupted: {reason}");
                }
                break;
            }

            events.valid(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: dataloader_valid.num_items(),
            });
            epoch::valid(&checkout.core().validated(), &dataloader_valid, &mut events);
            events.valid(LearnerEvent::EndSplit(epoch));
            events.train(LearnerEvent::EndEpoch(epoch));
            if checkpointer.is_some() || early_stopping.is_some() {
                let flushed = events.processor.flush();
                events.interrupter.fail_on_error(flushed);
            }
            if events.should_stop() {
                break;
            }

            if let Some(checkpointer) = &mut checkpointer {
                checkout.with_complete_learner(|learner| {
                    checkpointer.checkpoint(learner, epoch, &components.event_store);
                });
            }
            if let Some(early_stopping) = &mut early_stopping
                && early_stopping.should_stop(epoch, &components.event_store)
            {
                break;
            }
        }

        if let Err(reason) = checkout.end() {
            events.fail_at(
                0,
                format!("the model can't be returned to the learner: {reason}"),
            );
        }
        (learner.model(), events.processor)
    }
}

fn log_devices(devices: &[Device]) {
    let place = match devices {
        [device] => format!("{device:?} alone"),
        several => format!("{} devices, {several:?}", several.len()),
    };
    let recomputes = devices[0].gradient_checkpointing_strategy()
        == Some(GradientCheckpointingStrategy::Balanced);
    log::info!(
        "fused training on {place}, {} Burn's gradient checkpointing. The devices come from \
        `FusedLearner::with_training_strategy` or from the model, gradient checkpointing from the model: \
        `with_training_strategy` and `gradient_checkpointing` of the builder have no effect",
        if recomputes { "with" } else { "without" }
    );
}

/// Returns the owners that Burn's strategy or the config names, whichever is not the default.
fn owners(strategy: Ownership, config: Ownership) -> Result<Ownership, FusedError> {
    match (strategy, config) {
        (named, Ownership::ByParamId) | (Ownership::ByParamId, named) => Ok(named),
        (strategy, config) if strategy == config => Ok(config),
        (strategy, config) => Err(FusedError::Replicas {
            reason: format!(
                "`with_training_strategy` sets the ownership {strategy:?}, but `FusedConfig::ownership` is {config:?}: use \
                `MultiDeviceOptim::OptimSharded`, or remove `ownership`"
            ),
        }),
    }
}
