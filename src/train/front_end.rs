use backburn_base::caught::catch;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::GradientsParams;
use burn::train::{LearnerModel, TrainOutput, TrainStep};

use crate::error::FusedError;
use crate::fused::{Core, FusedOptimizer, FusedReplicas, Trainer};

/// The fused optimizer of a learner, on one device or on several.
pub(super) enum FrontEnd<M: LearnerModel> {
    One(Box<FusedOptimizer<M>>),
    Several(Box<FusedReplicas<M>>),
}

/// A function that clones a batch for the second pass of a two-pass step.
pub(super) type CloneItem<M> = fn(&<M as TrainStep>::Input) -> <M as TrainStep>::Input;

/// The output of a training step, for the metrics.
type Output<M> = <M as TrainStep>::Output;

impl<M: LearnerModel> FrontEnd<M> {
    /// Runs a step with one item per device. Without a learning rate, accumulates gradients instead.
    pub(super) fn train(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut items: Vec<Option<<M as TrainStep>::Input>>,
        clone_item: Option<CloneItem<M>>,
    ) -> Result<Vec<Output<M>>, FusedError> {
        let runs_twice = learning_rate.is_some() && self.core().runs_twice();
        let mut clone_item = clone_item.filter(|_| runs_twice);
        let mut next = move || {
            // The first of two passes leaves a clone for the second.
            let Some(clone_item) = clone_item.take() else {
                return std::mem::take(&mut items);
            };
            let repeated = items.iter().map(|item| item.as_ref().map(clone_item));
            let repeated = repeated.collect();
            std::mem::replace(&mut items, repeated)
        };
        match self {
            Self::One(fused) => {
                let trained = fused.train_step(learning_rate, |model| {
                    let item = next().pop().flatten();
                    train(model, item.expect("an item is there for every pass"))
                });
                trained.map(|output| vec![output])
            }
            Self::Several(fused) => fused.train_step(learning_rate, next, train),
        }
    }

    pub(super) fn core(&self) -> &Core<M> {
        match self {
            Self::One(fused) => fused.core(),
            Self::Several(fused) => fused.core(),
        }
    }

    pub(super) fn core_mut(&mut self) -> &mut Core<M> {
        match self {
            Self::One(fused) => fused.core_mut(),
            Self::Several(fused) => fused.core_mut(),
        }
    }
}

fn train<M: LearnerModel>(
    model: &M,
    item: <M as TrainStep>::Input,
) -> (Output<M>, GradientsParams) {
    let step = || TrainStep::step(model, item);
    let TrainOutput { grads, item } = catch(step).unwrap_or_else(|panic| match panic.text() {
        // The message of `GradientsParams::remove(id).unwrap()`.
        Some(text) if text.contains("`None` value") => panic!(
        "{text}. (Does `TrainStep::step` read a gradient here? Those of trained parameters are released when its backward pass \
        returns. Read or change them in a hook, see `FusedLearner::with_hook`)"
        ),
        _ => panic.resume(),
    });
    (item, grads)
}
