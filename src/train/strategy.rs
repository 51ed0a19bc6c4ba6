use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, GradientCheckpointingStrategy};
use burn::train::{
    EventProcessorTraining, Learner, LearnerEvent, LearnerModel, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, ValidLoader,
};

use super::epoch::{self, Events};
use super::learner::Repeat;
use super::loan::Loan;
use super::metric::LastStep;
use super::model::FusedModel;
use super::resume;
use crate::FusedOptimizer;
use crate::error::FusedError;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::offload::OffloadConfig;
use crate::policy::Policies;

/// Burn's single-device training with the optimizer fused into the backward pass.
pub(super) struct FusedStrategy<M: LearnerModel> {
    pub(super) policies: Policies,
    pub(super) gradient_checkpointing: GradientCheckpointingConfig,
    pub(super) offload: Option<(OffloadConfig, Device)>,
    pub(super) repeat: Option<Repeat<M>>,
    pub(super) last_step: LastStep,
}

impl<M: LearnerModel> FusedStrategy<M> {
    fn fuse(&self, model: M, optimizer: ModuleOptimizer) -> Result<FusedOptimizer<M>, FusedError> {
        let fused = FusedOptimizer::with_policies(model, optimizer, self.policies.clone())?;
        let fused = fused.with_gradient_checkpointing(self.gradient_checkpointing.clone());
        match &self.offload {
            None => Ok(fused),
            Some((config, device)) => fused.try_with_offload(config.clone(), device),
        }
    }

    /// Where the model of `learner` computes, with autodiff.
    fn training_device(&self, learner: &Learner<FusedModel<M>>) -> Device {
        use burn::module::Module;

        let of_model = with_autodiff(learner.model().devices().into_iter().next());
        let Some((_, device)) = &self.offload else {
            return of_model;
        };
        let device = with_autodiff(Some(device.clone()));
        match of_model.gradient_checkpointing_strategy() {
            Some(GradientCheckpointingStrategy::Balanced) => device.gradient_checkpointing(),
            _ => device,
        }
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
        let device = self.training_device(&learner);
        let dataloader_train = dataloader_train.to_device(&device);
        let dataloader_valid = dataloader_valid.to_device(&device.clone().inner());
        if self.offload.is_none() {
            learner.fork(&device);
        }
        let recomputes = device.gradient_checkpointing_strategy()
            == Some(GradientCheckpointingStrategy::Balanced);
        log::info!(
            "fused training on {device:?} alone, {} Burn's gradient checkpointing, as the model was \
             created; `with_training_strategy` and `gradient_checkpointing` of the builder don't count",
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
        let fuse = |model, optimizer| self.fuse(model, optimizer);
        let loan = Loan::new(&mut learner, fuse);
        let mut loan = loan.unwrap_or_else(|error| panic!("{error}"));

        for epoch in starting_epoch..=components.num_epochs {
            events.train(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: dataloader_train.num_items(),
            });
            let (fused, learner) = loan.parts();
            epoch::train(
                fused,
                learner,
                &dataloader_train,
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
            epoch::valid(&loan.fused().valid(), &dataloader_valid, &mut events);
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

        drop(loan);
        (learner.model(), events.processor)
    }
}

fn with_autodiff(device: Option<Device>) -> Device {
    let device = device.unwrap_or_default();
    match device.is_autodiff() {
        true => device,
        false => device.autodiff(),
    }
}
