use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::GradientsParams;

use super::gradient_state::{Accumulated, GradientState, ParameterReport};
use super::local_param::LocalParam;
use super::master_param::MasterParam;
use crate::offload::OffloadedBlocks;
use crate::parameters::with_rank;
use crate::pass::{BlockOrder, Pass};
use crate::placement::Residency;

/// What one rank has of the parameters of a module.
#[derive(Debug, Default)]
pub(crate) struct LocalParams {
    /// In module order: hooks that draw random numbers are called in one order.
    all: Vec<Arc<LocalParam>>,
    /// Index of each parameter in `all`.
    indices: HashMap<ParamId, usize>,
    /// The parameters that are ordinary leaves, in module order.
    pub(crate) leaves: Vec<ParamId>,
}

impl LocalParams {
    /// In module order.
    pub(super) fn add(&mut self, local_param: Arc<LocalParam>) {
        let (id, is_leaf) = (local_param.master.id, local_param.is_leaf);
        self.leaves.extend(is_leaf.then_some(id));
        self.indices.insert(id, self.all.len());
        self.all.push(local_param);
    }

    /// The homes of the parameters, in module order.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &MasterParam> {
        self.iter().map(|local_param| &*local_param.master)
    }

    /// In module order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<LocalParam>> + Clone {
        self.all.iter()
    }

    /// The ids of the parameters, in module order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.iter().map(|local_param| local_param.master.id)
    }

    pub(super) fn get(&self, id: ParamId) -> &Arc<LocalParam> {
        &self.all[self.indices[&id]]
    }

    pub(super) fn find(&self, id: ParamId) -> Option<&Arc<LocalParam>> {
        self.indices.get(&id).map(|index| &self.all[*index])
    }

    /// Whether there is one of the parameter.
    pub(super) fn has(&self, id: ParamId) -> bool {
        self.indices.contains_key(&id)
    }

    /// The same if that is no ordinary leaf.
    pub(super) fn has_released(&self, id: ParamId) -> bool {
        self.find(id)
            .is_some_and(|local_param| !local_param.is_leaf)
    }

    /// The parameters whose values come over whenever they are read.
    pub(super) fn fetched_on_read(&self) -> impl Iterator<Item = ParamId> {
        let coming = self
            .iter()
            .filter(|local_param| local_param.is_fetched_on_read());
        coming.map(|local_param| local_param.master.id)
    }

    /// Bytes of all values where they rest.
    #[cfg(feature = "cubecl")]
    pub(crate) fn bytes(&self) -> usize {
        self.iter()
            .map(|local_param| local_param.master.bytes())
            .sum()
    }

    /// Bytes of the weights that the rank holds between two passes, without those on all ranks.
    pub(crate) fn stored_bytes(&self) -> usize {
        let released = self.iter().filter(|local_param| !local_param.is_leaf);
        released.map(|local_param| local_param.stored_bytes()).sum()
    }

    /// Lets the device keep the weights of the blocks that don't wait on the host.
    pub(crate) fn pin_blocks(&self, block_order: &BlockOrder, offloaded: OffloadedBlocks) {
        let blocks = block_order.blocks();
        let bytes = blocks.iter().map(|reads| {
            let local_params = reads.iter().map(|id| self.get(*id));
            let coming = local_params.filter(|local_param| local_param.is_fetched_from_host());
            coming.map(|local_param| local_param.bytes()).sum()
        });
        let is_pinned = offloaded.resident_blocks(&bytes.collect::<Vec<_>>());
        let staying = blocks
            .into_iter()
            .zip(is_pinned)
            .filter(|(_, is_pinned)| *is_pinned);
        let parameters = staying.flat_map(|(reads, _)| reads);
        parameters.for_each(|id| self.get(*id).pin_copy());
    }

    /// Uses what has come and what was accumulated, as far as the backward pass has not, in module order.
    pub(crate) fn flush(&self, pass: &Arc<Pass>) {
        let released = self.all.iter().filter(|local_param| !local_param.is_leaf);
        released.for_each(|local_param| local_param.flush(pass));
    }

    /// Delivers the gradients of the parameters that are ordinary leaves, in module order, and uses them.
    pub(crate) fn deliver(&self, pass: &Arc<Pass>, mut gradients: GradientsParams) {
        let leaves = self.leaves.iter().map(|id| self.get(*id));
        leaves.for_each(|local_param| local_param.deliver(pass, &mut gradients));
    }

    /// Returns the path of the first parameter that has one of `gradients`, although the backward pass releases its gradient.
    pub(crate) fn released_in(&self, gradients: &GradientsParams) -> Option<&str> {
        let mut released = self.iter().filter(|local_param| !local_param.is_leaf);
        let found = released.find(|local_param| {
            let master = &local_param.master;
            with_rank!(master.shape.num_dims(), D => gradients.get::<D>(master.id).is_some())
        });
        found.map(|local_param| &*local_param.master.path)
    }

    /// Ends the pass, which is `committed` or rolled back, in every view and home, and drops the autodiff graph. Returns what has
    /// happened to each parameter, in module order.
    pub(crate) fn end(&self, committed: bool) -> Vec<(ParamId, ParameterReport)> {
        let end = |local_param: &Arc<LocalParam>| {
            let shares = local_param.assigned == Residency::Aliased;
            if !shares {
                local_param.drop_fetched();
            }
            let stage = std::mem::take(&mut local_param.state.lock().stage);
            let mut report = local_param.master.end(committed);
            report.received |= matches!(stage, GradientState::Done { received: true });
            if !shares {
                local_param.refresh_copy();
            }
            (local_param.master.id, report)
        };
        self.all.iter().map(end).collect()
    }

    /// The path of a parameter whose sum of gradients was overwritten by a pass that has not ended well; of several,
    /// the first by name.
    pub(crate) fn lost_accumulated(&self) -> Option<&str> {
        let lost = self.iter().filter(|local_param| {
            matches!(local_param.master.accumulated(), Accumulated::Overwritten)
        });
        lost.map(|local_param| &*local_param.master.path).min()
    }

    /// The optimizer state stays while the model changes: so do the groups that have begun in it.
    pub(crate) fn copy_groups(&self, from: &Self) {
        for master in self.masters() {
            let from = from
                .find(master.id)
                .map(|local_param| local_param.master.accumulated());
            if let Some(Accumulated::InOptimizerState) = from {
                master.leave(Accumulated::InOptimizerState);
            }
        }
    }
}
