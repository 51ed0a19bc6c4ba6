use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::train::{LearnerModel, TrainOutput, TrainStep};

use super::strategy::Repeat;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::Records;
use crate::report::StepReport;
use crate::{FusedOptimizer, FusedReplicas};

/// What trains a learner's model: on one device, or on several.
pub(super) enum Engine<M: LearnerModel> {
    One(Box<FusedOptimizer<M>>),
    Several(Box<FusedReplicas<M>>),
}

/// What a training step gives for the metrics.
type Output<M> = <M as TrainStep>::Output;

impl<M: LearnerModel + 'static> Engine<M> {
    /// A step with one item for each device that has one, or without a learning rate an accumulation.
    pub(super) fn train(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut items: Vec<Option<<M as TrainStep>::Input>>,
        repeat: Option<Repeat<M>>,
    ) -> Result<Vec<Output<M>>, FusedError> {
        let next = move || {
            let again = items.iter().map(|item| item.as_ref().zip(repeat));
            let again = again.map(|again| again.map(|(item, repeat)| repeat(item)));
            let again = again.collect();
            std::mem::replace(&mut items, again)
        };
        match self {
            Self::One(fused) => {
                let mut next = next;
                let trained = fused.try_with_backward(learning_rate, |model| {
                    let item = next().pop().flatten();
                    train(model, item.expect("an item is there for every pass"))
                });
                trained.map(|output| vec![output])
            }
            Self::Several(fused) => fused.try_with_backward(learning_rate, next, train),
        }
    }

    /// The model of the first device.
    pub(super) fn model(&self) -> M {
        match self {
            Self::One(fused) => fused.model(),
            Self::Several(fused) => fused.model(),
        }
    }

    /// The same for inference, or that of the averages if the config says so.
    pub(super) fn valid(&self) -> M {
        match self {
            Self::One(fused) if validates_averages(fused.config()) => fused.valid_averaged(),
            Self::One(fused) => fused.valid(),
            Self::Several(fused) if validates_averages(fused.config()) => fused.valid_averaged(),
            Self::Several(fused) => fused.valid(),
        }
    }

    /// The structure of the model, without the values of its trainable parameters.
    pub(super) fn hollow(&self) -> M {
        match self {
            Self::One(fused) => fused.hollow(),
            Self::Several(fused) => fused.hollow(),
        }
    }

    /// Whether what leaves the devices is read when somebody looks, and shows what was written in place by then.
    pub(super) fn is_read_late(&self) -> bool {
        match self {
            Self::One(fused) => fused.is_read_late(),
            Self::Several(fused) => fused.is_read_late(),
        }
    }

    /// The state of the optimizer, which is so read.
    pub(super) fn optimizer_record(&self) -> OptimizerRecord {
        match self {
            Self::One(fused) => fused.optimizer_record(),
            Self::Several(fused) => fused.optimizer_record(),
        }
    }

    /// Puts another optimizer in, state and all, and returns the one before.
    pub(super) fn replace_optimizer(&mut self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        match self {
            Self::One(fused) => fused.replace_optimizer(optimizer),
            Self::Several(fused) => fused.replace_optimizer(optimizer),
        }
    }

    pub(super) fn drop_accumulated(&mut self) {
        match self {
            Self::One(fused) => fused.drop_accumulated(),
            Self::Several(fused) => fused.drop_accumulated(),
        }
    }

    pub(super) fn last_step(&self) -> &StepReport {
        match self {
            Self::One(fused) => fused.last_step(),
            Self::Several(fused) => fused.last_step(),
        }
    }
}

fn validates_averages(config: &FusedConfig) -> bool {
    config
        .averaging
        .as_ref()
        .is_some_and(|averaging| averaging.validate)
}

fn train<M: LearnerModel>(
    model: &M,
    item: <M as TrainStep>::Input,
) -> (Output<M>, burn::optim::GradientsParams) {
    let TrainOutput { grads, item } = TrainStep::step(model, item);
    (item, grads)
}
