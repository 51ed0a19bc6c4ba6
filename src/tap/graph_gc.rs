use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::Device;

use super::{collect_graph, next_operation};

/// Minimum number of operations between two collections.
const FEW: u64 = 256;

/// A collector of the unreachable nodes that unrecorded runs of a pass leave in the autodiff graph. A collection visits all nodes, so
/// it runs after a sixteenth of the operations of the pass: the total time is linear.
#[derive(Debug)]
pub(crate) struct GraphGc {
    /// Number of operations in the process at the first block of the pass.
    begun: u64,
    /// Number of operations at the last collection.
    collected: AtomicU64,
}

impl GraphGc {
    pub(crate) fn new() -> Self {
        let now = next_operation();
        Self {
            begun: now,
            collected: AtomicU64::new(now),
        }
    }

    /// Collects if enough operations have run since the last collection.
    pub(crate) fn collect_if_due(&self, device: &Device) {
        let (now, collected) = (next_operation(), self.collected.load(Ordering::Relaxed));
        let enough = FEW.max((now - self.begun) / 16);
        let is_due = now.saturating_sub(collected) >= enough;
        let order = Ordering::Relaxed;
        // Only one of several threads collects.
        if is_due
            && self
                .collected
                .compare_exchange(collected, now, order, order)
                .is_ok()
        {
            collect_graph(device);
        }
    }
}

/// Collects unreachable nodes if enough operations have run since the last call. For code outside of a pass that lifts tensors.
pub(crate) fn collect_graph_if_due(device: &Device) {
    static COLLECTED: AtomicU64 = AtomicU64::new(0);
    let now = next_operation();
    if now.saturating_sub(COLLECTED.load(Ordering::Relaxed)) >= FEW {
        COLLECTED.store(now, Ordering::Relaxed);
        collect_graph(device);
    }
}
