//! The epochs of Burn's training, with a fused optimizer in them.

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingError, TrainingItem,
    ValidLoader, train::WorkerFailure,
};

use super::engine::{CloneItem, Engine};
use super::metric::LastStep;
use super::model::FusedModel;
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

    /// The next item of each iterator that has one, with the progress they make; none at the end and after an error,
    /// which ends the training. (Progress of several is that of Burn's multi-device training.)
    fn next<I>(
        &self,
        iterators: &mut [Box<dyn DataLoaderIterator<I> + '_>],
    ) -> Option<(Vec<Option<I>>, Progress)> {
        let mut items = Vec::with_capacity(iterators.len());
        let mut made = Vec::new();
        for iterator in iterators {
            match iterator.next().transpose() {
                Ok(item) => {
                    made.extend(item.is_some().then(|| iterator.progress()));
                    items.push(item);
                }
                Err(error) => {
                    self.interrupter.fail(error);
                    return None;
                }
            }
        }
        let sum = |mut sum: Progress, next: Progress| {
            sum.items_processed += next.items_processed;
            sum.items_total += next.items_total;
            sum
        };
        Some((items, made.into_iter().reduce(sum)?))
    }

    /// Ends the training.
    fn fail(&self, error: &FusedError) {
        let (device_id, message) = match error {
            FusedError::Rank { rank, error, .. } => (*rank, error.to_string()),
            FusedError::RankPanicked { rank, message, .. } => (*rank, message.clone()),
            error => (0, error.to_string()),
        };
        self.fail_at(device_id, message);
    }

    /// Ends the training with an error of a device. Of the errors that Burn has, that of a worker is about a training step.
    pub(super) fn fail_at(&self, device_id: usize, message: String) {
        let failure = WorkerFailure { device_id, message };
        self.interrupter.fail(TrainingError::Workers(vec![failure]));
    }

    pub(super) fn should_stop(&self) -> bool {
        self.interrupter.should_stop()
    }
}

/// One pass over the training data, with one loader for each device. `learner` keeps the learning rate.
pub(super) fn train<M: LearnerModel>(
    engine: &mut Engine<M>,
    learner: &mut Learner<FusedModel<M>>,
    dataloaders: &[TrainLoader<FusedModel<M>>],
    accumulation: Option<usize>,
    clone_item: Option<CloneItem<M>>,
    last_step: &LastStep,
    events: &mut Events<M>,
) {
    let mut iterators: Vec<_> = dataloaders.iter().map(|loader| loader.iter()).collect();
    let mut iteration = 0;
    let mut accumulated = 0;

    while let Some((items, progress)) = events.next(&mut iterators) {
        accumulated += 1;

        let last = accumulated >= accumulation.unwrap_or(1) || progress.is_completed();
        // The update happens during the backward pass, so its learning rate must be there before.
        let learning_rate = last.then(|| {
            accumulated = 0;
            learner.lr_step();
            learner.lr_current()
        });
        let outputs = match engine.train(learning_rate, items, clone_item) {
            Ok(outputs) => outputs,
            Err(error) => {
                events.fail(&error);
                break;
            }
        };
        if last {
            last_step.set(engine.core().last_step());
        }

        for output in outputs {
            iteration += 1;
            let lr = Some(learner.lr_current());
            let item = TrainingItem::new(output, progress.clone(), Some(iteration), lr);
            events.train(LearnerEvent::ProcessedItem(item));
        }
        if events.should_stop() {
            break;
        }
    }
    // As in Burn, what an interrupted epoch has accumulated is dropped.
    engine.core_mut().drop_accumulated();
}

/// One pass over the validation data.
pub(super) fn valid<M: LearnerModel>(
    model: &M,
    dataloader: &ValidLoader<FusedModel<M>>,
    events: &mut Events<M>,
) {
    let mut iterator = [dataloader.iter()];
    let mut iteration = 0;

    while let Some((items, progress)) = events.next(&mut iterator) {
        for item in items.into_iter().flatten() {
            iteration += 1;
            memory::enter(memory::Phase::Validation);
            let item = InferenceStep::step(model, item);
            memory::enter(memory::Phase::Other);
            let item = TrainingItem::new(item, progress.clone(), Some(iteration), None);
            events.valid(LearnerEvent::ProcessedItem(item));
        }
        if events.should_stop() {
            break;
        }
    }
}
