use std::path::Path;
use std::sync::Arc;

use burn::train::{LearnerModel, LearningResult, SupervisedTraining, TrainingStrategy};

use super::learner::FusedLearner;
use super::model::FusedModel;
use super::newest::newest;
use crate::checkpoint::CheckpointError;

/// Extension of Burn's [`SupervisedTraining`] with `launch_fused` and `resume_from_newest`. The type of the builder is
/// [`SupervisedTraining<FusedModel<M>>`](super#the-type-of-the-builder).
pub trait LaunchFused<M: LearnerModel> {
    /// Resumes from the last epoch with a complete checkpoint in `folder`, as
    /// [`SupervisedTraining::checkpoint`] does, or trains from the start if there is none: the same program begins and continues a
    /// training.
    ///
    /// `folder` is the folder of [`SupervisedTraining::new`], in which
    /// [`with_default_checkpointers`](SupervisedTraining::with_default_checkpointers) saves. If the process was killed during a save,
    /// that epoch has fewer files than a complete checkpoint. It is trained again, and its files get the ending `.incomplete`. Keep two
    /// checkpoints or more, as by default: Burn deletes an only one before the next is complete.
    ///
    /// The resumed training equals the uninterrupted one to the bit if its batches do and the model draws no random numbers: the
    /// data loader must not shuffle. Burn saves neither its position nor any generator, nor the state of early stopping, which counts
    /// again from the resumed epoch. Burn loads states in f64 as f32. A load replaces the ids of the model: define parameter groups by
    /// path.
    ///
    /// ```no_run
    /// use backburn::CheckpointError;
    /// use backburn::train::{FusedLearner, FusedModel, LaunchFused};
    /// use burn::train::{LearnerModel, LearningResult, SupervisedTraining};
    ///
    /// fn run<M: LearnerModel>(
    ///     training: SupervisedTraining<FusedModel<M>>, // of the folder "runs/1"
    ///     learner: FusedLearner<M>,
    /// ) -> Result<LearningResult<M>, CheckpointError> {
    ///     let training = training.with_default_checkpointers().resume_from_newest("runs/1")?;
    ///     Ok(training.launch_fused(learner))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Unreadable`] if the folder of the checkpoints can't be read, [`CheckpointError::Incomplete`] if it has files
    /// of a later epoch than the first and no complete checkpoint, [`CheckpointError::Write`] if an incomplete file can't be renamed.
    fn resume_from_newest(self, folder: impl AsRef<Path>) -> Result<Self, CheckpointError>
    where
        Self: Sized;

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
    /// - If the parameter group of a hook has ids that the model no longer has after a load.
    /// - If an epoch to resume from is set, and there are no checkpointers. (Stock Burn then trains from that epoch with the
    ///   initial weights.)
    /// - If the code of the model panics, on one device.
    /// - Where `SupervisedTraining::launch` panics.
    ///
    /// A step that fails ends the training with an error in the result.
    fn launch_fused(self, learner: FusedLearner<M>) -> LearningResult<M>;
}

impl<M: LearnerModel> LaunchFused<M> for SupervisedTraining<FusedModel<M>> {
    fn resume_from_newest(self, folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Ok(match newest(folder.as_ref())? {
            Some(epoch) => self.checkpoint(epoch),
            None => self,
        })
    }

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
