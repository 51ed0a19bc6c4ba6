use std::sync::Arc;

use burn::train::{LearnerModel, LearningResult, SupervisedTraining, TrainingStrategy};

use super::learner::FusedLearner;
use super::model::FusedModel;

/// Extension of Burn's [`SupervisedTraining`] with `launch_fused`. The type of the builder is
/// [`SupervisedTraining<FusedModel<M>>`](super#the-type-of-the-builder).
pub trait LaunchFused<M: LearnerModel> {
    /// Launches the training, as [`SupervisedTraining::launch`] does, with the optimizer fused into
    /// the backward pass.
    ///
    /// See the [module docs](super#limits) for options of the builder that have no effect.
    ///
    /// # Panics
    ///
    /// - If the model can't be fused or trained with its config, with the message of the error of
    ///   [`FusedOptimizer::new`](crate::FusedOptimizer::new) or
    ///   [`with_config`](crate::FusedOptimizer::with_config).
    /// - If the checkpoint to resume from has a state that does not fit its parameter, or that the
    ///   optimizer can't load.
    /// - If the code of the model panics, on one device.
    /// - Where `SupervisedTraining::launch` panics.
    ///
    /// A step that fails ends the training with an error in the result.
    fn launch_fused(self, learner: FusedLearner<M>) -> LearningResult<M>;
}

impl<M: LearnerModel> LaunchFused<M> for SupervisedTraining<FusedModel<M>> {
    fn launch_fused(self, learner: FusedLearner<M>) -> LearningResult<M> {
        let FusedLearner { learner, strategy } = learner;
        let strategy = TrainingStrategy::Custom(Arc::new(strategy));
        let result = self.with_training_strategy(strategy).launch(learner);

        LearningResult {
            model: result.model.into_inner(),
            renderer: result.renderer,
            interrupted: result.interrupted,
            error: result.error,
        }
    }
}
