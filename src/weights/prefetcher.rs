use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::local_params::LocalParams;
use crate::offload::OffloadEngine;
use crate::pass::{BlockOrder, BlockPrefetch};

/// A prefetcher of offloaded weights. While one block computes, it fetches the weights of the next, in the block order
/// of the previous pass. It drops the copies of finished blocks.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    local_params: Arc<LocalParams>,
    engine: Option<Arc<OffloadEngine>>,
    before: BlockOrder,
    /// The parameters fetched for the current run, and for the next.
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

    /// Fetches what run `run` reads and the run before did not, within the limit of bytes in flight.
    fn fetch_for(&self, run: usize, engine: &OffloadEngine) -> Vec<ParamId> {
        let reads = self.before.new_reads(run).unwrap_or_default();
        let mut left = engine.transfers.limit.prefetch();
        let mut fits = |id: &&ParamId| {
            let local_param = self.local_params.get(**id);
            let rest = left.checked_sub(local_param.copy.bytes());
            let rest = rest.filter(|_| local_param.copy.is_fetched_from_host());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let fetched: Vec<_> = reads.iter().filter(&mut fits).copied().collect();
        if !fetched.is_empty() {
            let (local_params, fetched) = (self.local_params.clone(), fetched.clone());
            engine.queue_fetch(move || {
                fetched
                    .iter()
                    .for_each(|id| drop(local_params.get(*id).copy.fetch()))
            });
        }
        fetched
    }
}

impl BlockPrefetch for Prefetcher {
    fn end_first_run(&self, reads: &[ParamId]) {
        reads
            .iter()
            .for_each(|id| self.local_params.get(*id).copy.drop_fetched());
    }

    fn engine(&self) -> Option<&OffloadEngine> {
        self.engine.as_deref()
    }

    fn begin_run(&self, run: usize) {
        let Some(engine) = &self.engine else {
            return;
        };
        // A device with queued work still holds the weights of earlier blocks.
        engine.sync();
        // Not locked below: on a thread of a pool another block may begin while this one waits.
        let [of_last, mut of_this] = std::mem::take(&mut *self.fetched.lock());
        if run == 0 {
            of_this = self.fetch_for(run, engine);
        }
        // Otherwise the run could overtake the prefetch, and both would fetch the same weights.
        engine.transfers.to_device.wait_idle();
        // The previous run is over, so an unread copy that was fetched for it only takes memory.
        let unused = of_last.iter().filter(|id| !of_this.contains(id));
        unused.for_each(|id| self.local_params.get(*id).copy.drop_fetched());
        let of_next = self.fetch_for(run + 1, engine);
        let mut fetched = self.fetched.lock();
        fetched[0].extend(of_this);
        fetched[1].extend(of_next);
    }
}
