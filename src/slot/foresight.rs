use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::ParamId;
use parking_lot::Mutex;

use super::form::Slots;
use crate::offload::Placement;
use crate::pass::{Course, Foresight};

/// Brings the weights of the next block over while this one computes, in the order of the pass before, if there was
/// one.
#[derive(Debug)]
pub(crate) struct FetchAhead {
    slots: Arc<Slots>,
    placement: Arc<Placement>,
    before: Course,
    /// The run under way.
    current: Arc<AtomicUsize>,
    /// What was brought for the run under way, and what for the next.
    fetched: Mutex<[Vec<ParamId>; 2]>,
}

impl FetchAhead {
    pub(crate) fn new(slots: Arc<Slots>, placement: Arc<Placement>, before: Course) -> Self {
        Self {
            slots,
            placement,
            before,
            current: Arc::default(),
            fetched: Mutex::default(),
        }
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
        self.current.store(run, Ordering::Release);
        // The blocks before have their weights no longer than it takes.
        self.placement.hand_over();
        let next = self.before.reads_anew(run + 1).unwrap_or_default();
        let mut fetched = self.fetched.lock();
        let [of_last, of_this] = std::mem::take(&mut *fetched);
        // The run before has read what it wanted: what is left of what was brought for it would stay in the way.
        let in_the_way = of_last.iter().filter(|id| !of_this.contains(id));
        in_the_way.for_each(|id| self.slots.let_go(*id));
        for id in next {
            let (slots, id, current) = (self.slots.clone(), *id, self.current.clone());
            self.placement.send_ahead(move || {
                // Too late if the next run has begun: it has taken what it needs.
                if current.load(Ordering::Acquire) == run {
                    slots.fetch(id);
                }
            });
        }
        *fetched = [of_this, next.to_vec()];
    }
}
