use backburn_optim::optimizer_record::{read, to_bytes};
use burn::optim::OptimizerRecord;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use super::checkout;
use super::model::FusedModel;
use super::snapshot::snapshot;
use crate::error::FusedError;
use crate::record;

/// Returns an error if a state in the checkpoint of `epoch` does not fit its parameter, or the optimizer could not
/// load it. Burn silently starts such a parameter with a fresh state.
pub(super) fn check<M: LearnerModel>(
    checkpointer: &LearningCheckpointer<FusedModel<M>>,
    epoch: usize,
    learner: &mut Learner<FusedModel<M>>,
) -> Result<(), FusedError> {
    let model = learner.model().into_inner();
    let stateless = record::parameters_without_state(&checkout::optimizer(learner), &model)?;
    if stateless.is_empty() {
        return Ok(());
    }
    // Load the record again, into an optimizer that accepts any state, to find out which states it contains.
    let mut reader = learner.clone();
    checkout::set_optimizer(&mut reader, snapshot(OptimizerRecord::default));
    let mut reader = checkpointer.load_checkpoint(reader, epoch);
    let recorded = read(to_bytes(checkout::optimizer(&mut reader).to_record())?)?;
    for (id, path) in stateless {
        if let Some(state) = recorded.get(&id.val()) {
            let state = format!("state of {} dimensions", state.num_dims()?);
            return Err(FusedError::RecordOfAnotherOptimizer { path, state });
        }
    }
    Ok(())
}
