use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use parking_lot::Mutex;

use super::block_order::{BlockOrder, BlockPrefetch};
use super::config::GradientCheckpointingConfig;
use super::numbers::Observations;
use super::reads::BlockReads;
use crate::offload::{ActivationOffload, OffloadEngine};
use crate::random::{Seeds, StepSeeds};
use crate::tap::GraphGc;

/// The checkpointed blocks of a pass.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(super) config: GradientCheckpointingConfig,
    /// Prefetches the weights that the blocks read, if these are fetched and dropped with their runs.
    pub(super) prefetcher: Option<Arc<dyn BlockPrefetch>>,
    /// Offloads the inputs of blocks, if the config enables it.
    pub(crate) input_offload: Option<Arc<ActivationOffload>>,
    /// The order of the runs, and the parameters that each reads.
    pub(crate) block_order: Mutex<BlockOrder>,
    /// The number of outermost blocks so far.
    pub(super) called: AtomicUsize,
    /// Each block in its first run holds a clone.
    pub(crate) running_blocks: Arc<()>,
    /// Collects graph nodes of first runs.
    pub(super) graph_gc: OnceLock<GraphGc>,
    pub(crate) observations: Arc<Observations>,
    /// The source of this step's seed.
    pub(super) step_seeds: Arc<StepSeeds>,
    /// The seeds of the blocks.
    pub(super) block_seeds: OnceLock<Seeds>,
    /// The devices on which blocks draw random numbers.
    pub(super) drawn_on: Mutex<Vec<Device>>,
}

/// The run mode of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockMode {
    /// Once, with its own random numbers, as if it were recomputed.
    KeepActivations,
    /// Twice: it is recomputed in the backward pass. An outermost block has an index.
    Recompute { index: Option<usize> },
}

impl Blocks {
    /// Returns the mode of the next outermost block.
    pub(crate) fn next(&self) -> BlockMode {
        self.graph_gc.get_or_init(GraphGc::new);
        let index = self.called.fetch_add(1, Ordering::Relaxed);
        match self.config.keep_activations.get(index) {
            Some(true) => BlockMode::KeepActivations,
            _ => BlockMode::Recompute { index: Some(index) },
        }
    }

    /// Records the start of a run of an outermost block, or of its recomputation.
    pub(crate) fn enter(&self, block: usize) {
        let run = self.block_order.lock().begin(block);
        if let Some(prefetcher) = &self.prefetcher {
            prefetcher.begin_run(run);
        }
    }

    /// Records the end of the first run of an outermost block.
    pub(crate) fn leave_first_run(&self, block: usize, block_reads: &BlockReads) {
        let reads = block_reads.reads.ids();
        if let Some(prefetcher) = &self.prefetcher {
            prefetcher.end_first_run(&reads);
        }
        self.block_order.lock().set_reads(block, reads);
    }

    /// Returns the offload engine of the weights of blocks, if any are offloaded.
    pub(crate) fn engine(&self) -> Option<&OffloadEngine> {
        self.prefetcher.as_deref()?.engine()
    }

    /// Collects the graph nodes of first runs, if there are enough of them.
    pub(crate) fn collect_graph(&self, device: &Device) {
        self.graph_gc
            .get_or_init(GraphGc::new)
            .collect_if_due(device);
    }

    /// Returns `true` if a block runs without recording, on any thread.
    pub(crate) fn is_running(&self) -> bool {
        Arc::strong_count(&self.running_blocks) > 1
    }

    /// Warns that a block has not used `what`, a tracked input.
    pub(crate) fn warn_unused(&self, block: &str, what: &str) {
        if self.observations.is_new(format!("{block} {what}")) {
            log::warn!(
                "the recomputed block {block} does not use its {what}, or the loss does not use the outputs that depend on \
                 it. Its gradient is zero; without gradient checkpointing it has no gradient. If it should have none, \
                 detach it before the block"
            );
        }
    }

    /// Returns the seed of the next outermost block, which computes on `device`.
    pub(super) fn next_seed(&self, device: &Device) -> u64 {
        let first = || Seeds::from(self.step_seeds.next(device));
        self.block_seeds.get_or_init(first).next()
    }

    /// Records that a block draws on these devices.
    pub(crate) fn draw_on(&self, devices: &[Device]) {
        let mut known = self.drawn_on.lock();
        for device in devices {
            if !known.contains(device) {
                known.push(device.clone());
            }
        }
    }
}
