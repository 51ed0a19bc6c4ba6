use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::GradientsParams;

use super::gradient_state::{Accumulated, GradientState, ParameterReport};
use super::local_param::{LocalParam, StandIn};
use super::master_param::MasterParam;
use super::tap_sink::has_gradient;
use crate::offload::OffloadedBlocks;
use crate::pass::{BlockOrder, Pass};

/// The parameters of a module on one rank.
#[derive(Debug, Default)]
pub(crate) struct LocalParams {
    /// In module order, so that hooks that draw random numbers are called in a fixed order.
    all: Vec<Arc<LocalParam>>,
    /// Index of each parameter in `all`.
    indices: HashMap<ParamId, usize>,
    /// The retained parameters, which are ordinary leaves of the module, in module order.
    pub(crate) retained: Vec<ParamId>,
    /// The frozen parameters of the module: id, number of dimensions, path.
    pub(super) frozen: Vec<(ParamId, usize, Arc<str>)>,
}

impl LocalParams {
    pub(super) fn add(&mut self, local_param: Arc<LocalParam>) {
        let (id, is_retained) = (local_param.master.id, local_param.is_retained);
        self.retained.extend(is_retained.then_some(id));
        self.indices.insert(id, self.all.len());
        self.all.push(local_param);
    }

    /// Returns the masters, in module order.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &MasterParam> {
        self.iter().map(|local_param| &*local_param.master)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<LocalParam>> {
        self.all.iter()
    }

    /// Returns the ids, in module order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.iter().map(|local_param| local_param.master.id)
    }

    pub(super) fn get(&self, id: ParamId) -> &Arc<LocalParam> {
        &self.all[self.indices[&id]]
    }

    pub(super) fn find(&self, id: ParamId) -> Option<&Arc<LocalParam>> {
        self.indices.get(&id).map(|index| &self.all[*index])
    }

    /// Returns `true` if the parameter is trained.
    pub(super) fn has(&self, id: ParamId) -> bool {
        self.indices.contains_key(&id)
    }

    /// Returns the parameters that are fetched whenever they are read.
    pub(super) fn on_demand(&self) -> impl Iterator<Item = ParamId> {
        let fetched = self
            .iter()
            .filter(|local_param| local_param.copy.is_on_demand());
        fetched.map(|local_param| local_param.master.id)
    }

    /// Returns the bytes of all stored values.
    #[cfg(feature = "cubecl")]
    pub(crate) fn bytes(&self) -> usize {
        self.iter()
            .map(|local_param| local_param.master.bytes())
            .sum()
    }

    /// Returns the bytes of the values that have another owner, which the next update copies.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.iter()
            .map(|local_param| local_param.master.shared_bytes())
            .sum()
    }

    /// Returns the bytes of weights that the rank holds between two passes, without those on all ranks.
    pub(crate) fn stored_bytes(&self) -> usize {
        let released = self.iter().filter(|local_param| !local_param.is_retained);
        released.map(|local_param| local_param.stored_bytes()).sum()
    }

    /// Pins the weights of the blocks that are not offloaded.
    pub(crate) fn pin_blocks(&self, block_order: &BlockOrder, offloaded: OffloadedBlocks) {
        let blocks = block_order.blocks();
        let bytes = blocks.iter().map(|reads| {
            let local_params = reads.iter().map(|id| self.get(*id));
            let fetched =
                local_params.filter(|local_param| local_param.copy.is_fetched_from_host());
            fetched.map(|local_param| local_param.copy.bytes()).sum()
        });
        let is_pinned = offloaded.resident_blocks(&bytes.collect::<Vec<_>>());
        let staying = blocks
            .into_iter()
            .zip(is_pinned)
            .filter(|(_, is_pinned)| *is_pinned);
        let parameters = staying.flat_map(|(reads, _)| reads);
        parameters.for_each(|id| self.get(*id).copy.pin());
    }

    /// Reports the gradients, or the accumulated sums, that the backward pass has not reported, in module order.
    pub(crate) fn report_remaining(&self, pass: &Arc<Pass>) {
        for local_param in self.all.iter().filter(|it| !it.is_retained) {
            let arrived = match &mut *local_param.gradient.lock() {
                GradientState::Done { .. } => continue,
                // The loss does not depend on this read.
                GradientState::Pending(expecting) => {
                    expecting.tapped = None;
                    expecting.partial.take()
                }
                GradientState::Idle => None,
            };
            match arrived {
                Some(partial) => local_param.report_untapped(pass, partial.whole()),
                None => local_param.report_gradient(pass, None),
            }
        }
    }

    /// Returns `true` if a parameter was updated since the training was created.
    pub(crate) fn were_updated(&self) -> bool {
        self.masters().any(|master| master.version() > 0)
    }

    /// Returns `true` if gradients were accumulated before the next step.
    pub(crate) fn have_accumulated(&self) -> bool {
        let mut masters = self.masters();
        masters.any(|master| !matches!(master.accumulated(), Accumulated::Nothing))
    }

    /// Returns `true` if `gradients` has a gradient of a retained parameter.
    pub(crate) fn retained_are_in(&self, gradients: &GradientsParams) -> bool {
        let mut retained = self.retained.iter().map(|id| self.get(*id));
        retained.any(|local_param| local_param.is_retained_in(gradients))
    }

    /// Reports the gradients of the retained parameters, in module order.
    pub(crate) fn report_retained(&self, pass: &Arc<Pass>, mut gradients: GradientsParams) {
        let retained = self.retained.iter().map(|id| self.get(*id));
        retained.for_each(|local_param| local_param.report_retained(pass, &mut gradients));
    }

    /// Returns the path of the first parameter with an edited gradient in `gradients`: a stand-in that was replaced, a released or
    /// frozen parameter with a gradient of its own, and if `is_complete`, or if there are other stand-ins, a missing one.
    pub(crate) fn edited_in(&self, gradients: &GradientsParams, is_complete: bool) -> Option<&str> {
        let (mut expected, mut stand_ins, mut missing) = (0, 0, None);
        for local_param in self.iter() {
            if local_param.is_retained {
                expected += usize::from(local_param.is_retained_in(gradients));
                continue;
            }
            let path = &*local_param.master.path;
            match local_param.stand_in(gradients) {
                StandIn::None => {}
                StandIn::Unchanged => stand_ins += 1,
                StandIn::Missing => missing = missing.or(Some(path)),
                StandIn::Edited => return Some(path),
            }
        }
        if missing.is_some() && (is_complete || stand_ins > 0) {
            return missing;
        }
        if gradients.len() == expected + stand_ins {
            return None;
        }
        let mut frozen = self.frozen.iter();
        let added = frozen.find(|(id, dims, _)| has_gradient(gradients, *id, *dims));
        added.map(|(.., path)| &**path)
    }

    /// Ends the pass in every master, drops taps and fetched copies, and refreshes cached ones. Returns a report per
    /// parameter, in module order.
    pub(crate) fn end(&self, commits: bool) -> Vec<(ParamId, ParameterReport)> {
        let end = |local_param: &Arc<LocalParam>| {
            let is_aliased = local_param.copy.is_aliased();
            if let Some(applied) = local_param.applied.get() {
                applied.end_pass();
            }
            if !is_aliased {
                local_param.copy.drop_fetched();
            }
            let gradient = std::mem::take(&mut *local_param.gradient.lock());
            let mut report = local_param.master.end(commits);
            if let GradientState::Done { received: true } = gradient {
                report = report.max(ParameterReport::Received);
            }
            if !is_aliased {
                local_param.copy.refresh();
            }
            (local_param.master.id, report)
        };
        self.all.iter().map(end).collect()
    }

    /// Returns the path of a parameter whose accumulated sum was overwritten by a failed pass; of several, the first
    /// by name.
    pub(crate) fn lost_accumulated(&self) -> Option<&str> {
        let lost = self.iter().filter(|local_param| {
            matches!(local_param.master.accumulated(), Accumulated::Overwritten)
        });
        lost.map(|local_param| &*local_param.master.path).min()
    }

    /// Returns the parameters with gradients of micro-batches in the optimizer state.
    pub(crate) fn accumulated_in_state(&self) -> HashSet<ParamId> {
        let is_in_state =
            |it: &&MasterParam| matches!(it.accumulated(), Accumulated::InOptimizerState);
        let masters = self.masters().filter(is_in_state);
        masters.map(|master| master.id).collect()
    }

    /// Marks parameters whose optimizer state has gradients of micro-batches, after the state was taken over.
    pub(crate) fn set_accumulated_in_state(&self, ids: &HashSet<ParamId>) {
        let masters = self.masters().filter(|master| ids.contains(&master.id));
        masters.for_each(|master| master.set_accumulated(Accumulated::InOptimizerState));
    }
}
