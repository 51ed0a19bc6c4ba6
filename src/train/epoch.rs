//! Training and validation epochs of Burn's `SupervisedTraining` with a fused optimizer.

use backburn_memory as memory;
use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingError, TrainingItem,
    ValidLoader, train::WorkerFailure,
};

use super::front_end::{CloneItem, FrontEnd};
use super::metric::LastStep;
use super::model::FusedModel;
use crate::error::FusedError;

/// The event processor and the interrupter of a training.
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

    /// Returns the next item of each iterator, and the sum of their progress, as in Burn's multi-device training. Returns `None`
    /// at the end of the data, and after an error, which ends the training.
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

    /// Ends the training with the error of a step.
    fn fail(&self, error: &FusedError) {
        let (device_id, message) = match error {
            FusedError::Rank { rank, error, .. } => (*rank, error.to_string()),
            FusedError::RankPanicked { rank, message, .. } => (*rank, message.clone()),
            error => (0, error.to_string()),
        };
        self.fail_at(device_id, message);
    }

    /// Ends the training with an error of a device. Burn's only error for a training step is that of a worker.
    pub(super) fn fail_at(&self, device_id: usize, message: String) {
        let failure = WorkerFailure { device_id, message };
        self.interrupter.fail(TrainingError::Workers(vec![failure]));
    }

    pub(super) fn should_stop(&self) -> bool {
        self.interrupter.should_stop()
    }
}

/// Runs one epoch over the training data, with one loader per device. `learner` holds the learning rate.
pub(super) fn train<M: LearnerModel>(
    front_end: &mut FrontEnd<M>,
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
        // The update happens in the backward pass, so the learning rate must be set before it.
        let learning_rate = last.then(|| {
            accumulated = 0;
            learner.lr_step();
            learner.lr_current()
        });
        let outputs = match front_end.train(learning_rate, items, clone_item) {
            Ok(outputs) => outputs,
            Err(error) => {
                events.fail(&error);
                break;
            }
        };
        if last {
            last_step.set(front_end.core().last_step());
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
    // As in Burn, an interrupted epoch drops its accumulated gradients.
    front_end.core_mut().drop_accumulated();
}

/// Runs one pass over the validation data.
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
