use burn::data::dataloader::split::split_dataloader;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, GradientCheckpointingStrategy};
use burn::train::{
    EventProcessorTraining, Learner, LearnerEvent, LearnerModel, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, ValidLoader,
};

use super::engine::Engine;
use super::epoch::{self, Events};
use super::execution::Execution;
use super::learner::Repeat;
use super::loan::Loan;
use super::metric::LastStep;
use super::model::FusedModel;
use super::resume;
use crate::error::FusedError;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::offload::OffloadConfig;
use crate::policy::Policies;
use crate::replica::Sharding;
use crate::{FusedOptimizer, FusedReplicas};

/// Burn's training, on one device or several, with the optimizer fused into the backward pass.
pub(super) struct FusedStrategy<M: LearnerModel> {
    pub(super) policies: Policies,
    pub(super) gradient_checkpointing: GradientCheckpointingConfig,
    pub(super) offload: Option<(OffloadConfig, Device)>,
    pub(super) execution: Execution,
    pub(super) sharding: Sharding,
    pub(super) draws: bool,
    pub(super) repeat: Option<Repeat<M>>,
    pub(super) last_step: LastStep,
}

impl<M: LearnerModel + 'static> FusedStrategy<M> {
    /// Fuses `optimizer` into the training of `model` on `devices`.
    fn fuse(
        &self,
        model: M,
        optimizer: ModuleOptimizer,
        devices: &[Device],
    ) -> Result<Engine<M>, FusedError> {
        let policies = self.policies.clone();
        let blocks = self.gradient_checkpointing.clone();
        match (&self.execution, &self.offload) {
            (Execution::OfModel, _) if self.sharding != Sharding::default() => {
                Err(FusedError::Replicas {
                    reason: format!(
                        "`with_sharding({:?})` is for several devices, and none are named: name them with \
                         `with_training_strategy`",
                        self.sharding
                    ),
                })
            }
            (Execution::OfModel, None) | (Execution::One(_), None) => {
                let fused = FusedOptimizer::with_policies(model, optimizer, policies)?;
                let fused = fused.with_gradient_checkpointing(blocks);
                Ok(Engine::One(Box::new(fused)))
            }
            (Execution::OfModel, Some((config, device))) => {
                let fused = FusedOptimizer::with_policies(model, optimizer, policies)?;
                let fused = fused.with_gradient_checkpointing(blocks);
                let fused = fused.try_with_offload(config.clone(), device)?;
                Ok(Engine::One(Box::new(fused)))
            }
            (Execution::Several { ownership, .. }, None) => {
                let devices = devices.to_vec();
                let fused = FusedReplicas::with_policies(model, optimizer, policies, devices)?
                    .with_sharding(self.sharding)
                    .with_ownership(*ownership)
                    .with_gradient_checkpointing(blocks);
                let fused = match self.draws {
                    true => fused,
                    false => fused.without_random_numbers(),
                };
                Ok(Engine::Several(Box::new(fused)))
            }
            (_, Some(_)) => Err(FusedError::Offload {
                reason: "the device is named twice, by `with_offload` and by `with_training_strategy`, and several \
                         devices can't be offloaded: leave one of them out"
                    .to_string(),
            }),
        }
    }

    /// Where the model of `learner` computes, with autodiff.
    fn training_devices(&self, learner: &Learner<FusedModel<M>>) -> Vec<Device> {
        let of_model = learner.model().devices().into_iter().next();
        let of_model = of_model.unwrap_or_default().autodiff();
        let named = match (&self.execution, &self.offload) {
            (Execution::OfModel, None) => return vec![of_model],
            (Execution::OfModel, Some((_, device))) | (Execution::One(device), _) => {
                std::slice::from_ref(device)
            }
            (Execution::Several { devices, .. }, _) => devices,
        };
        let named = named.iter().cloned();
        named
            .map(|device| device.with_autodiff_context_from(&of_model))
            .collect()
    }
}

impl<M: LearnerModel + 'static> SupervisedLearningStrategy<FusedModel<M>> for FusedStrategy<M> {
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
        let device = &devices[0];
        let total_items = dataloader_train.num_items();
        let dataloaders_train = match &devices[..] {
            [device] => vec![dataloader_train.to_device(device)],
            several => split_dataloader(dataloader_train, several),
        };
        let dataloader_valid = dataloader_valid.to_device(&device.clone().inner());
        if self.offload.is_none() && devices.len() == 1 {
            learner.fork(device);
        }
        let place = match &devices[..] {
            [device] => format!("{device:?} alone"),
            several => format!("{} devices, {several:?}", several.len()),
        };
        let recomputes = device.gradient_checkpointing_strategy()
            == Some(GradientCheckpointingStrategy::Balanced);
        log::info!(
            "fused training on {place}, {} Burn's gradient checkpointing, as the model was created; \
             `with_training_strategy` and `gradient_checkpointing` of the builder don't count",
            if recomputes { "with" } else { "without" }
        );

        let mut checkpointer = components.checkpointer;
        let mut early_stopping = components.early_stopping;
        let mut events = Events {
            processor: components.event_processor,
            interrupter: components.interrupter,
        };
        if let (Some(epoch), Some(checkpointer)) = (components.checkpoint, &checkpointer) {
            resume::check(checkpointer, epoch, &mut learner)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        let fuse = |model, optimizer| self.fuse(model, optimizer, &devices);
        let loan = Loan::new(&mut learner, fuse);
        let mut loan = loan.unwrap_or_else(|error| panic!("{error}"));

        for epoch in starting_epoch..=components.num_epochs {
            events.train(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items,
            });
            let (engine, learner) = loan.parts();
            epoch::train(
                engine,
                learner,
                &dataloaders_train,
                components.grad_accumulation,
                self.repeat,
                &self.last_step,
                &mut events,
            );
            events.train(LearnerEvent::EndSplit(epoch));
            if events.should_stop() {
                if let Some(interruption) = events.interrupter.interruption() {
                    let reason = interruption.reason.as_deref().unwrap_or("reason unknown");
                    log::info!("Training interrupted: {reason}");
                }
                break;
            }

            events.valid(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: dataloader_valid.num_items(),
            });
            epoch::valid(&loan.engine().valid(), &dataloader_valid, &mut events);
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
                loan.show(|learner| {
                    checkpointer.checkpoint(learner, epoch, &components.event_store);
                });
            }
            if let Some(early_stopping) = &mut early_stopping
                && early_stopping.should_stop(epoch, &components.event_store)
            {
                break;
            }
        }

        if let Err(reason) = loan.end() {
            events.fail_at(
                0,
                format!("the model can't be put together again: {reason}"),
            );
        }
        (learner.model(), events.processor)
    }
}
