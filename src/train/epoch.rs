//! The epochs of Burn's single-device training, with a fused optimizer in them.

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainOutput, TrainStep, TrainingError,
    TrainingItem, ValidLoader, train::WorkerFailure,
};

use super::learner::Repeat;
use super::metric::LastStep;
use super::model::FusedModel;
use crate::FusedOptimizer;
use crate::error::FusedError;
use crate::memory;

/// Where the events of an epoch go, and where it learns that it must stop.
pub(super) struct Events<M: LearnerModel> {
    pub(super) processor: SupervisedTrainingEventProcessor<FusedModel<M>>,
    pub(super) interrupter: Interrupter,
}

impl<M: LearnerModel> Events<M> {
    pub(super) fn train(&mut self, event: LearnerEvent<<FusedModel<M> as TrainStep>::Output>) {
        let processed = self.processor.process_train(event);
        self.interrupter.fail_on_error(processed);
    }

    pub(super) fn valid(&mut self, event: LearnerEvent<<FusedModel<M> as InferenceStep>::Output>) {
        let processed = self.processor.process_valid(event);
        self.interrupter.fail_on_error(processed);
    }

    /// The next item with the progress it makes; none at the end and after an error, which ends
    /// the training.
    fn next<I>(&self, iterator: &mut dyn DataLoaderIterator<I>) -> Option<(I, Progress)> {
        match iterator.next()? {
            Ok(item) => Some((item, iterator.progress())),
            Err(error) => {
                self.interrupter.fail(error);
                None
            }
        }
    }

    /// Ends the training. Of the errors that Burn has, that of a worker is about a training step.
    fn fail(&self, error: &FusedError) {
        self.interrupter
            .fail(TrainingError::Workers(vec![WorkerFailure {
                device_id: 0,
                message: error.to_string(),
            }]));
    }

    pub(super) fn should_stop(&self) -> bool {
        self.interrupter.should_stop()
    }
}

/// One pass over the training data. `learner` keeps the learning rate.
pub(super) fn train<M: LearnerModel>(
    fused: &mut FusedOptimizer<M>,
    learner: &mut Learner<FusedModel<M>>,
    dataloader: &TrainLoader<FusedModel<M>>,
    accumulation: Option<usize>,
    repeat: Option<Repeat<M>>,
    last_step: &LastStep,
    events: &mut Events<M>,
) {
    let mut iterator = dataloader.iter();
    let mut iteration = 0;
    let mut accumulated = 0;

    while let Some((item, progress)) = events.next(&mut *iterator) {
        iteration += 1;
        accumulated += 1;

        let last = accumulated >= accumulation.unwrap_or(1) || progress.is_completed();
        // The update happens during the backward pass, so its learning rate must be there before.
        let learning_rate = last.then(|| {
            accumulated = 0;
            learner.lr_step();
            learner.lr_current()
        });
        let mut item = Some(item);
        let output = fused.try_with_backward(learning_rate, |model| {
            let again = item.as_ref().zip(repeat).map(|(item, repeat)| repeat(item));
            let item = std::mem::replace(&mut item, again);
            let item = item.expect("a batch is there for every pass");
            let TrainOutput { grads, item } = TrainStep::step(model, item);
            (item, grads)
        });
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                events.fail(&error);
                break;
            }
        };
        if last {
            last_step.set(fused.last_step());
        }

        let lr = Some(learner.lr_current());
        let item = TrainingItem::new(output, progress, Some(iteration), lr);
        events.train(LearnerEvent::ProcessedItem(item));
        if events.should_stop() {
            break;
        }
    }
    // As in Burn, what an interrupted epoch has accumulated is dropped.
    fused.drop_accumulated();
}

/// One pass over the validation data.
pub(super) fn valid<M: LearnerModel>(
    model: &M,
    dataloader: &ValidLoader<FusedModel<M>>,
    events: &mut Events<M>,
) {
    let mut iterator = dataloader.iter();
    let mut iteration = 0;

    while let Some((item, progress)) = events.next(&mut *iterator) {
        iteration += 1;

        memory::enter(memory::Phase::Validation);
        let item = InferenceStep::step(model, item);
        memory::enter(memory::Phase::Other);
        let item = TrainingItem::new(item, progress, Some(iteration), None);
        events.valid(LearnerEvent::ProcessedItem(item));
        if events.should_stop() {
            break;
        }
    }
}
