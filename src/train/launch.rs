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
    /// As [`FusedOptimizer::new`](crate::FusedOptimizer::new) and
    /// [`step`](crate::FusedOptimizer::step) do, and as `SupervisedTraining::launch` does; if the
    /// checkpoint that it resumes from has a state that does not fit its parameter, or that the
    /// optimizer can't load.
    fn launch_fused(self, learner: FusedLearner<M>) -> LearningResult<M>;
}

impl<M: LearnerModel> LaunchFused<M> for SupervisedTraining<FusedModel<M>> {
    fn launch_fused(self, learner: FusedLearner<M>) -> LearningResult<M> {
        let FusedLearner { learner, how } = learner;
        let strategy = TrainingStrategy::Custom(Arc::new(how));
        let result = self.with_training_strategy(strategy).launch(learner);

        LearningResult {
            model: result.model.into_inner(),
            renderer: result.renderer,
            interrupted: result.interrupted,
            error: result.error,
        }
    }
}
