use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use parking_lot::Mutex;

use super::block_order::{BlockOrder, BlockPrefetch};
use super::config::GradientCheckpointingConfig;
use super::count_guard::CountGuard;
use super::observations::Observations;
use super::pending::Readers;
use crate::offload::{ActivationOffload, OffloadEngine};
use crate::random::{self, Seeds, StepSeeds, mix};
use crate::tap::GraphGc;

/// The blocks of a pass that are under gradient checkpointing.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(super) config: Arc<GradientCheckpointingConfig>,
    /// Who brings what they read, if it comes and goes with their runs.
    pub(super) prefetcher: Option<Arc<dyn BlockPrefetch>>,
    /// If their inputs wait on the host.
    pub(crate) saved: Option<Arc<ActivationOffload>>,
    /// In which order they run, and what each reads.
    pub(crate) block_order: Mutex<BlockOrder>,
    /// The number of blocks so far that are in no other.
    pub(super) called: AtomicUsize,
    /// Blocks whose first run is under way.
    pub(super) running: AtomicUsize,
    /// Of their first runs, since the first was called.
    pub(super) graph_gc: OnceLock<GraphGc>,
    pub(crate) observations: Arc<Observations>,
    /// Where the seed of this step comes from.
    pub(crate) seeds: Arc<StepSeeds>,
    /// Those of the blocks.
    pub(super) own_seeds: OnceLock<Seeds>,
    /// The devices that blocks have drawn on.
    pub(super) drawn_on: Mutex<Vec<Device>>,
}

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockMode {
    /// It is called with random numbers of its own, as if it ran twice.
    KeepActivations,
    /// It runs twice. A block that is in no other has an index.
    Recompute { index: Option<usize> },
}

impl Blocks {
    /// What becomes of the next block that is in no other.
    pub(crate) fn next(&self) -> BlockMode {
        self.graph_gc.get_or_init(GraphGc::new);
        let index = self.called.fetch_add(1, Ordering::Relaxed);
        match self.config.keep_activations.get(index) {
            Some(true) => BlockMode::KeepActivations,
            _ => BlockMode::Recompute { index: Some(index) },
        }
    }

    /// A block that is in no other begins to run, for the first or for the second time.
    pub(crate) fn enter(&self, block: usize) {
        let run = self.block_order.lock().begin(block);
        if let Some(prefetcher) = &self.prefetcher {
            prefetcher.begin_run(run);
        }
    }

    /// Such a block has run for the first time.
    pub(crate) fn leave_first_run(&self, block: usize, readers: &Readers) {
        let reads = readers.reads().ids();
        if let Some(prefetcher) = &self.prefetcher {
            prefetcher.end_first_run(&reads);
        }
        self.block_order.lock().has_read(block, reads);
    }

    /// From where their weights come over, if any wait.
    pub(crate) fn engine(&self) -> Option<&OffloadEngine> {
        self.prefetcher.as_deref()?.engine()
    }

    /// Does `run` as the first run of a block.
    pub(crate) fn first_run<R>(&self, run: impl FnOnce() -> R) -> R {
        let _counted = CountGuard::one_in(&self.running);
        run()
    }

    /// Lets autodiff let go of what first runs have left, if that is enough to be worth it.
    pub(crate) fn collect_graph(&self, device: &Device) {
        self.graph_gc
            .get_or_init(GraphGc::new)
            .collect_if_due(device);
    }

    /// Whether a block runs without recording, on whichever thread.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// A block has not used `what`, a tracked tensor that it has been given.
    pub(crate) fn warn_unused(&self, block: &str, what: &str) {
        if self.observations.is_new(format!("{block} {what}")) {
            log::warn!(
                "the recomputed block {block} does not use its {what}, or the loss does not use what the block makes of \
                 it. Its gradient is zero, where a plain call would give none; if there should be none, detach it before \
                 the block"
            );
        }
    }

    /// The seed of the next block that is in no other, which computes on `device`.
    pub(super) fn next_seed(&self, device: &Device) -> u64 {
        let first = || Seeds::from(self.seeds.next(device));
        self.own_seeds.get_or_init(first).next()
    }

    /// A block draws on these devices.
    pub(crate) fn draw_on(&self, devices: &[Device]) {
        let mut known = self.drawn_on.lock();
        for device in devices {
            if !known.contains(device) {
                known.push(device.clone());
            }
        }
    }

    /// What the generators give next does not depend on which blocks ran twice.
    pub(super) fn end(&self) {
        if let Some(seeds) = self.own_seeds.get() {
            random::seed(&self.drawn_on.lock(), mix(seeds.first, u64::MAX));
        }
    }
}
