use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::views::Views;
use crate::offload::OffloadEngine;
use crate::pass::{Course, Foresight};

/// Lets go of the copies that a run of a block has read. Those that wait on the host it brings over while the block
/// before computes, in the order of the pass before, if there was one.
#[derive(Debug)]
pub(crate) struct FetchAhead {
    views: Arc<Views>,
    placement: Option<Arc<OffloadEngine>>,
    before: Course,
    /// What was brought for the run under way, and what for the next.
    fetched: Mutex<[Vec<ParamId>; 2]>,
}

impl FetchAhead {
    pub(super) fn new(
        views: Arc<Views>,
        placement: Option<Arc<OffloadEngine>>,
        before: Course,
    ) -> Self {
        Self {
            views,
            placement,
            before,
            fetched: Mutex::default(),
        }
    }

    /// Brings what the run of this number reads, and the one before it did not, as far as it may be under way.
    fn fetch_for(&self, run: usize, placement: &OffloadEngine) -> Vec<ParamId> {
        let reads = self.before.reads_anew(run).unwrap_or_default();
        let mut left = placement.transfers.limit.prefetch();
        let mut fits = |id: &&ParamId| {
            let view = self.views.get(**id);
            let rest = left.checked_sub(view.bytes());
            let rest = rest.filter(|_| view.comes_from_host());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let coming: Vec<_> = reads.iter().filter(&mut fits).copied().collect();
        if !coming.is_empty() {
            let (views, coming) = (self.views.clone(), coming.clone());
            placement.prefetch(move || coming.iter().for_each(|id| views.get(*id).fetch()));
        }
        coming
    }
}

impl Foresight for FetchAhead {
    fn first_run_is_over(&self, reads: &[ParamId]) {
        reads.iter().for_each(|id| self.views.get(*id).let_go());
    }

    fn placement(&self) -> Option<&OffloadEngine> {
        self.placement.as_deref()
    }

    fn run_begins(&self, run: usize) {
        let Some(placement) = &self.placement else {
            return;
        };
        // A device that is behind still holds the weights of the blocks before.
        placement.sync();
        let mut fetched = self.fetched.lock();
        let [of_last, mut of_this] = std::mem::take(&mut *fetched);
        if run == 0 {
            of_this = self.fetch_for(run, placement);
        }
        // Else the run could overtake what was sent for, and both would come over for it.
        placement.transfers.to_device.wait_idle();
        // The run before has read what it wanted: what is left of what was brought for it would stay in the way.
        let in_the_way = of_last.iter().filter(|id| !of_this.contains(id));
        in_the_way.for_each(|id| self.views.get(*id).let_go());
        *fetched = [of_this, self.fetch_for(run + 1, placement)];
    }
}
