use burn::optim::OptimizerRecord;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use super::checkout;
use super::model::FusedModel;
use super::snapshot::snapshot;
use crate::error::FusedError;
use crate::optimizer_record::{read, to_bytes};
use crate::record;

/// Refuses what Burn has loaded from the checkpoint of `epoch` if a state does not fit its parameter,
/// or the optimizer could not load it, in which case Burn starts the parameter anew.
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
    // Only loading it once more, into an optimizer that takes whatever it gets, tells what the record has.
    let mut reader = learner.clone();
    checkout::set_optimizer(&mut reader, snapshot(OptimizerRecord::default));
    let mut reader = checkpointer.load_checkpoint(reader, epoch);
    let recorded = read(to_bytes(checkout::optimizer(&mut reader).to_record())?)?;
    for (id, path) in stateless {
        if let Some(state) = recorded.get(&id.val()) {
            let state = format!("state of rank {}", state.rank()?);
            return Err(FusedError::RecordOfAnotherOptimizer { path, state });
        }
    }
    Ok(())
}
