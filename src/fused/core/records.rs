//! Records of the model and of the optimizer state.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use backburn_optim::optimizer_record::save_by_tensor;
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::OptimizerRecord;
use burn::store::RecordError;
use burn::tensor::{Bool, Int, Tensor};

use super::Core;
use crate::error::FusedError;
use crate::parameters::running_statistics;
use crate::record;
use crate::shared_optimizer::{EXTRA_STATE_ID, average_id};
use crate::weights::{AttachedModule, Entry};

/// A visitor that collects the parameters that are not floats.
#[derive(Default)]
struct Counters(Vec<ParamId>);

impl ModuleVisitor for Counters {
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.push(param.id);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.push(param.id);
    }
}

impl<M: Module> Core<M> {
    /// Writes a record of the model, or only of its trained parameters, to `file`, one tensor after the other.
    pub(crate) fn save_model(&self, file: &Path, trained_only: bool) -> Result<(), RecordError> {
        let model = self.ranks.export(AttachedModule::export_in_place);
        let trained = || ParamGroup::from_ids(self.trained_in(&model).into_iter().collect());
        let group = trained_only.then(trained);
        self.with_graph_collected(record::save_model(&model, group.as_ref(), file))
    }

    /// Returns the trained parameters, the running statistics, and the parameters of `model` that are not floats, such as counters.
    pub(super) fn trained_in(&self, model: &M) -> HashSet<ParamId> {
        let mut counters = Counters::default();
        model.visit(&mut counters);
        let mut trained = running_statistics(model);
        trained.extend(self.ranks.local_params().ids());
        trained.extend(counters.0);
        trained
    }

    /// Returns the optimizer state, which is also read lazily.
    pub(crate) fn optimizer_record(&self) -> OptimizerRecord {
        self.ranks.optimizer.lock().to_record()
    }

    /// Writes the states of the parameters of the model, or only of its trained ones, to `file`, one tensor after the other.
    pub(crate) fn save_optimizer(
        &self,
        file: &Path,
        trained_only: bool,
    ) -> Result<(), RecordError> {
        let optimizer = &self.ranks.optimizer;
        let inventory = &self.ranks.attached().inventory;
        let is_saved = |id: ParamId| match trained_only {
            true => inventory.get(id).is_some_and(Entry::is_trained),
            false => inventory.get(id).is_some(),
        };
        let keeps = |id: u64| {
            // `average_id` is its own inverse.
            id == EXTRA_STATE_ID || is_saved(id.into()) || is_saved(average_id(id.into()))
        };
        // Before tensors are withheld: a state whose eviction failed is still on the device.
        let offloaded = optimizer.lock().offloaded_records();
        save_by_tensor(file, keeps, || optimizer.lock().records(offloaded))
    }

    /// Returns the paths whose velocity in `file`, a record of this optimizer, belongs to Muon; `None` without a velocity.
    pub(crate) fn orthogonalized(
        &self,
        file: &Path,
    ) -> Result<Option<BTreeSet<String>>, FusedError> {
        let fresh = self.ranks.optimizer.lock().fresh();
        record::orthogonalized(file, &fresh)
    }

    /// Returns the current optimizer state.
    pub(in crate::fused) fn to_record(&self) -> OptimizerRecord {
        let record = self.optimizer_record();
        match self.is_asynchronous() {
            true => record::read_into_host(record),
            false => record,
        }
    }

    /// Loads the optimizer state. After an error it is unchanged.
    pub(in crate::fused) fn load_record(
        &mut self,
        record: OptimizerRecord,
    ) -> Result<(), FusedError> {
        // States that are offloaded need not be read only to be replaced.
        let optimizer = self.ranks.optimizer.lock().optimizer_mut().clone();
        let loaded = record::load(record, &optimizer, &self.ranks.attached().module)?;
        drop(optimizer);
        self.load_state(|optimizer| optimizer.replace(loaded));
        Ok(())
    }
}
