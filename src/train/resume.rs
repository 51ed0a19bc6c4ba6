use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{DynOptimizer, DynState, StateSink, StateSource};
use burn::tensor::Device;
use burn::tensor::kind::BridgeTensor;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};
use parking_lot::Mutex;

use super::exchange::no_optimizer;
use super::loan;
use super::model::FusedModel;
use crate::error::FusedError;
use crate::record;

/// Refuses what Burn has loaded from the checkpoint of `epoch` if a state does not fit its parameter,
/// or the optimizer could not load it, in which case Burn starts the parameter anew.
pub(super) fn check<M: LearnerModel>(
    checkpointer: &LearningCheckpointer<FusedModel<M>>,
    epoch: usize,
    learner: &mut Learner<FusedModel<M>>,
) -> Result<(), FusedError> {
    let model = learner.model().into_inner();
    let stateless = record::parameters_without_state(&loan::optimizer(learner), &model)?;
    if stateless.is_empty() {
        return Ok(());
    }
    // Only loading it once more, into an optimizer that takes notes, tells what the record has.
    let noting = Noting::default();
    let optimizer = no_optimizer().with_group(ParamGroup::all(), noting.clone(), None);
    let mut reader = learner.clone();
    loan::set_optimizer(&mut reader, optimizer);
    drop(checkpointer.load_checkpoint(reader, epoch));
    let recorded = noting.0.lock();
    match stateless
        .into_iter()
        .find_map(|(id, path)| Some((path, recorded.get(&id)?)))
    {
        Some((path, rank)) => Err(FusedError::RecordOfAnotherOptimizer {
            path,
            state: format!("state of rank {rank}"),
        }),
        None => Ok(()),
    }
}

/// Loads nothing, and notes which parameters a record has a state of, with its rank.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<BTreeMap<ParamId, usize>>>);

impl DynOptimizer for Noting {
    fn step_dyn(
        &self,
        _rank: usize,
        _learning_rate: f64,
        tensor: BridgeTensor,
        _gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, state)
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, _prefix: &str, _state: &DynState, _sink: &mut StateSink) {}

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        _source: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        if let Ok(id) = prefix.parse::<u64>() {
            self.0.lock().insert(id.into(), rank);
        }
        None
    }
}
