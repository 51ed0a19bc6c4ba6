use burn::tensor::Device;
use burn::train::{
    EventProcessorTraining, Learner, LearnerEvent, LearnerModel, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, ValidLoader,
};

use super::epoch::{self, Events};
use super::exchange::{Exchange, no_optimizer};
use super::learner::Repeat;
use super::metric::LastStep;
use super::model::FusedModel;
use crate::FusedOptimizer;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::policy::Policies;

/// Burn's single-device training with the optimizer fused into the backward pass.
pub(super) struct FusedStrategy<M: LearnerModel> {
    pub(super) exchange: Exchange<M>,
    pub(super) policies: Policies,
    pub(super) gradient_checkpointing: GradientCheckpointingConfig,
    pub(super) repeat: Option<Repeat<M>>,
    pub(super) last_step: LastStep,
}

impl<M: LearnerModel> FusedStrategy<M> {
    /// Moves model and optimizer out of the learner into a fused optimizer.
    fn fuse(&self, learner: &mut Learner<FusedModel<M>>) -> FusedOptimizer<M> {
        let model = learner.model().into_inner();
        let (model, optimizer) = self.exchange.swap(learner, model, no_optimizer());
        let fused = FusedOptimizer::with_policies(model, optimizer, self.policies.clone());
        let fused = fused.unwrap_or_else(|error| panic!("{error}"));
        let fused = fused.with_gradient_checkpointing(self.gradient_checkpointing.clone());
        self.exchange.swap(learner, fused.hollow(), no_optimizer());
        fused
    }

    /// Lets the learner have the current model and the optimizer while `look` runs.
    ///
    /// At all other times it has neither: a second owner of a weight or of an optimizer state would
    /// turn its update into a copy.
    fn show(
        &self,
        fused: &mut FusedOptimizer<M>,
        learner: &mut Learner<FusedModel<M>>,
        look: impl FnOnce(&Learner<FusedModel<M>>),
    ) {
        let optimizer = fused.replace_optimizer(no_optimizer());
        self.exchange.swap(learner, fused.model(), optimizer);
        look(learner);
        let (_, optimizer) = self.exchange.swap(learner, fused.hollow(), no_optimizer());
        fused.replace_optimizer(optimizer);
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
        let device = training_device(&learner);
        let dataloader_train = dataloader_train.to_device(&device);
        let dataloader_valid = dataloader_valid.to_device(&device.clone().inner());
        learner.fork(&device);
        log::info!(
            "fused training on {device:?} alone; a strategy set with `with_training_strategy` is \
             replaced"
        );

        let mut checkpointer = components.checkpointer;
        let mut early_stopping = components.early_stopping;
        let mut events = Events {
            processor: components.event_processor,
            interrupter: components.interrupter,
        };
        let mut fused = self.fuse(&mut learner);

        for epoch in starting_epoch..=components.num_epochs {
            events.train(LearnerEvent::StartSplit {
                epoch_number: epoch,
                total_items: dataloader_train.num_items(),
            });
            epoch::train(
                &mut fused,
                &mut learner,
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
            epoch::valid(&fused.valid(), &dataloader_valid, &mut events);
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
                self.show(&mut fused, &mut learner, |learner| {
                    checkpointer.checkpoint(learner, epoch, &components.event_store);
                });
            }
            if let Some(early_stopping) = &mut early_stopping
                && early_stopping.should_stop(epoch, &components.event_store)
            {
                break;
            }
        }

        let model = FusedModel::new(fused.model(), self.exchange.clone());
        (model, events.processor)
    }
}

/// The device the model is on, with autodiff.
fn training_device<M: LearnerModel>(learner: &Learner<FusedModel<M>>) -> Device {
    use burn::module::Module;

    let devices = learner.model().devices();
    let device = devices.into_iter().next().unwrap_or_default();
    if device.is_autodiff() {
        device
    } else {
        device.autodiff()
    }
}
