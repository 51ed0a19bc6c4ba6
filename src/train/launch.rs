use std::sync::Arc;

use burn::train::{LearnerModel, LearningResult, SupervisedTraining, TrainingStrategy};

use super::learner::FusedLearner;
use super::model::FusedModel;

/// Adds `launch_fused` to Burn's [`SupervisedTraining`], whose type is then
/// [`SupervisedTraining<FusedModel<M>>`](super#the-type-of-the-builder).
pub trait LaunchFused<M: LearnerModel> {
    /// Launches the training, as [`SupervisedTraining::launch`] does, with the optimizer fused into
    /// the backward pass.
    ///
    /// See the [module docs](super) for what the builder can't pass on.
    ///
    /// # Panics
    ///
    /// - If the model can't be fused or trained with its config, with the message of the error of
    ///   [`FusedOptimizer::new`](crate::FusedOptimizer::new) or
    ///   [`with_config`](crate::FusedOptimizer::with_config).
    /// - If the checkpoint that it resumes from has a state that does not fit its parameter, or that the
    ///   optimizer can't load.
    /// - If the code of the model panics, on one device, and as `SupervisedTraining::launch` does.
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
