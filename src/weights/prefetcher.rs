use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::local_params::LocalParams;
use crate::offload::OffloadEngine;
use crate::pass::{BlockOrder, BlockPrefetch};

/// Lets go of the copies that a run of a block has read. Those that wait on the host it brings over while the block
/// before computes, in the order of the pass before, if there was one.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    local_params: Arc<LocalParams>,
    engine: Option<Arc<OffloadEngine>>,
    before: BlockOrder,
    /// What was brought for the run under way, and what for the next.
    fetched: Mutex<[Vec<ParamId>; 2]>,
}

impl Prefetcher {
    pub(super) fn new(
        local_params: Arc<LocalParams>,
        engine: Option<Arc<OffloadEngine>>,
        before: BlockOrder,
    ) -> Self {
        Self {
            local_params,
            engine,
            before,
            fetched: Mutex::default(),
        }
    }

    /// Brings what the run of this number reads, and the one before it did not, as far as it may be under way.
    fn fetch_for(&self, run: usize, engine: &OffloadEngine) -> Vec<ParamId> {
        let reads = self.before.reads_anew(run).unwrap_or_default();
        let mut left = engine.transfers.limit.prefetch();
        let mut fits = |id: &&ParamId| {
            let local_param = self.local_params.get(**id);
            let rest = left.checked_sub(local_param.bytes());
            let rest = rest.filter(|_| local_param.is_fetched_from_host());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let coming: Vec<_> = reads.iter().filter(&mut fits).copied().collect();
        if !coming.is_empty() {
            let (local_params, coming) = (self.local_params.clone(), coming.clone());
            engine.prefetch(move || {
                coming
                    .iter()
                    .for_each(|id| local_params.get(*id).prefetch())
            });
        }
        coming
    }
}

impl BlockPrefetch for Prefetcher {
    fn end_first_run(&self, reads: &[ParamId]) {
        reads
            .iter()
            .for_each(|id| self.local_params.get(*id).drop_fetched());
    }

    fn engine(&self) -> Option<&OffloadEngine> {
        self.engine.as_deref()
    }

    fn begin_run(&self, run: usize) {
        let Some(engine) = &self.engine else {
            return;
        };
        // A device that is behind still holds the weights of the blocks before.
        engine.sync();
        let mut fetched = self.fetched.lock();
        let [of_last, mut of_this] = std::mem::take(&mut *fetched);
        if run == 0 {
            of_this = self.fetch_for(run, engine);
        }
        // Else the run could overtake what was sent for, and both would come over for it.
        engine.transfers.to_device.wait_idle();
        // The run before has read what it wanted: what is left of what was brought for it would stay in the way.
        let in_the_way = of_last.iter().filter(|id| !of_this.contains(id));
        in_the_way.for_each(|id| self.local_params.get(*id).drop_fetched());
        *fetched = [of_this, self.fetch_for(run + 1, engine)];
    }
}
