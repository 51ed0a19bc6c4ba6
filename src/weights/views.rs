use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::GradientsParams;

use super::home::Home;
use super::stage::{Accumulated, GradientState, ParameterReport};
use super::view::View;
use crate::layout::Holding;
use crate::offload::OffloadedBlocks;
use crate::parameters::with_rank;
use crate::pass::{Course, Pass};

/// What one rank has of the parameters of a module.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// In module order: hooks that draw random numbers are called in one order.
    all: Vec<Arc<View>>,
    /// Index of each parameter in `all`.
    indices: HashMap<ParamId, usize>,
    /// The parameters that are ordinary leaves, in module order.
    pub(crate) leaves: Vec<ParamId>,
}

impl Views {
    /// In module order.
    pub(super) fn add(&mut self, view: Arc<View>) {
        let (id, is_leaf) = (view.home.id, view.is_leaf);
        self.leaves.extend(is_leaf.then_some(id));
        self.indices.insert(id, self.all.len());
        self.all.push(view);
    }

    /// The homes of the parameters, in module order.
    pub(crate) fn homes(&self) -> impl Iterator<Item = &Home> {
        self.iter().map(|view| &*view.home)
    }

    /// In module order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<View>> + Clone {
        self.all.iter()
    }

    /// The ids of the parameters, in module order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.iter().map(|view| view.home.id)
    }

    pub(super) fn get(&self, id: ParamId) -> &Arc<View> {
        &self.all[self.indices[&id]]
    }

    pub(super) fn find(&self, id: ParamId) -> Option<&Arc<View>> {
        self.indices.get(&id).map(|index| &self.all[*index])
    }

    /// Whether there is one of the parameter.
    pub(super) fn has(&self, id: ParamId) -> bool {
        self.indices.contains_key(&id)
    }

    /// The same if that is no ordinary leaf.
    pub(super) fn has_released(&self, id: ParamId) -> bool {
        self.find(id).is_some_and(|view| !view.is_leaf)
    }

    /// The parameters whose values come over whenever they are read.
    pub(super) fn coming_over(&self) -> impl Iterator<Item = ParamId> {
        let coming = self.iter().filter(|view| view.comes_over());
        coming.map(|view| view.home.id)
    }

    /// Bytes of all values where they rest.
    #[cfg(feature = "cubecl")]
    pub(crate) fn bytes(&self) -> usize {
        self.iter().map(|view| view.home.bytes()).sum()
    }

    /// Bytes of the weights that the rank holds between two passes, without those on all ranks.
    pub(crate) fn bytes_at_rest(&self) -> usize {
        let released = self.iter().filter(|view| !view.is_leaf);
        released.map(|view| view.bytes_at_rest()).sum()
    }

    /// Lets the device keep the weights of the blocks that don't wait on the host.
    pub(crate) fn keep_copies(&self, course: &Course, waiting: OffloadedBlocks) {
        let blocks = course.blocks();
        let bytes = blocks.iter().map(|reads| {
            let views = reads.iter().map(|id| self.get(*id));
            let coming = views.filter(|view| view.comes_from_host());
            coming.map(|view| view.bytes()).sum()
        });
        let stays = waiting.resident_blocks(&bytes.collect::<Vec<_>>());
        let staying = blocks.into_iter().zip(stays).filter(|(_, stays)| *stays);
        let parameters = staying.flat_map(|(reads, _)| reads);
        parameters.for_each(|id| self.get(*id).keep_copy());
    }

    /// Uses what has come and what was accumulated, as far as the backward pass has not, in module order.
    pub(crate) fn flush(&self, pass: &Arc<Pass>) {
        let released = self.all.iter().filter(|view| !view.is_leaf);
        released.for_each(|view| view.flush(pass));
    }

    /// Delivers the gradients of the parameters that are ordinary leaves, in module order, and uses them.
    pub(crate) fn deliver(&self, pass: &Arc<Pass>, mut gradients: GradientsParams) {
        let leaves = self.leaves.iter().map(|id| self.get(*id));
        leaves.for_each(|view| view.deliver(pass, &mut gradients));
    }

    /// Returns the path of the first parameter that has one of `gradients`, although the backward pass releases its gradient.
    pub(crate) fn released_in(&self, gradients: &GradientsParams) -> Option<&str> {
        let mut released = self.iter().filter(|view| !view.is_leaf);
        let found = released.find(|view| {
            let home = &view.home;
            with_rank!(home.shape.num_dims(), D => gradients.get::<D>(home.id).is_some())
        });
        found.map(|view| &*view.home.path)
    }

    /// Ends the pass, which is `committed` or rolled back, in every view and home, and drops the autodiff graph. Returns what has
    /// happened to each parameter, in module order.
    pub(crate) fn end(&self, committed: bool) -> Vec<(ParamId, ParameterReport)> {
        let end = |view: &Arc<View>| {
            let shares = view.given == Holding::Shared;
            if !shares {
                view.let_go();
            }
            let stage = std::mem::take(&mut view.state.lock().stage);
            let mut report = view.home.end(committed);
            report.received |= matches!(stage, GradientState::Done { received: true });
            if !shares {
                view.refresh_copy();
            }
            (view.home.id, report)
        };
        self.all.iter().map(end).collect()
    }

    /// The path of a parameter whose sum of gradients was overwritten by a pass that has not ended well; of several,
    /// the first by name.
    pub(crate) fn lost_accumulated(&self) -> Option<&str> {
        let lost = self
            .iter()
            .filter(|view| matches!(view.home.accumulated(), Accumulated::Overwritten));
        lost.map(|view| &*view.home.path).min()
    }

    /// The optimizer state stays while the model changes: so do the groups that have begun in it.
    pub(crate) fn copy_groups(&self, from: &Self) {
        for home in self.homes() {
            let from = from.find(home.id).map(|view| view.home.accumulated());
            if let Some(Accumulated::InOptimizerState) = from {
                home.leave(Accumulated::InOptimizerState);
            }
        }
    }
}
