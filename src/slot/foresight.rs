use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::slots::Slots;
use crate::offload::Placement;
use crate::pass::{Course, Foresight};

/// Brings the weights of the next block over while this one computes, in the order of the pass before, if there was
/// one.
#[derive(Debug)]
pub(crate) struct FetchAhead {
    slots: Arc<Slots>,
    placement: Arc<Placement>,
    before: Course,
    /// What was brought for the run under way, and what for the next.
    fetched: Mutex<[Vec<ParamId>; 2]>,
}

impl FetchAhead {
    pub(crate) fn new(slots: Arc<Slots>, placement: Arc<Placement>, before: Course) -> Self {
        Self {
            slots,
            placement,
            before,
            fetched: Mutex::default(),
        }
    }

    /// Brings what the run of this number reads, and the one before it did not.
    fn fetch_for(&self, run: usize) -> Vec<ParamId> {
        let reads = self.before.reads_anew(run).unwrap_or_default();
        let comes_over = |id: &&ParamId| self.slots.comes_over(**id);
        let coming: Vec<_> = reads.iter().filter(comes_over).copied().collect();
        if !coming.is_empty() {
            let (slots, coming) = (self.slots.clone(), coming.clone());
            let fetch = move || coming.iter().for_each(|id| slots.fetch(*id));
            self.placement.send_ahead(fetch);
        }
        coming
    }
}

impl Foresight for FetchAhead {
    fn first_run_is_over(&self, reads: &[ParamId]) {
        reads.iter().for_each(|id| self.slots.let_go(*id));
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn run_begins(&self, run: usize) {
        // A device that is behind still holds the weights of the blocks before.
        self.placement.catch_up();
        let mut fetched = self.fetched.lock();
        let [of_last, mut of_this] = std::mem::take(&mut *fetched);
        if run == 0 {
            of_this = self.fetch_for(run);
        }
        // Else the run could overtake what was sent for, and both would come over for it.
        self.placement.wait_for_weights();
        // The run before has read what it wanted: what is left of what was brought for it would stay in the way.
        let in_the_way = of_last.iter().filter(|id| !of_this.contains(id));
        in_the_way.for_each(|id| self.slots.let_go(*id));
        *fetched = [of_this, self.fetch_for(run + 1)];
    }
}
