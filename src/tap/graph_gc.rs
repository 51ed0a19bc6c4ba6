use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::autodiff::NodeId;
use burn::tensor::Device;

use super::collect_graph;

/// Operations that may lie around in any case.
const FEW: u64 = 256;

/// What runs without recording leave behind: autodiff notes all operations of its tensors, and keeps the note of one
/// that nobody can go back through until it is swept up.
///
/// A sweep looks at all that autodiff has. So there is one whenever a sixteenth of the operations of the pass have come
/// since the last: little lies around, and all sweeps together take time in proportion to the operations.
#[derive(Debug)]
pub(crate) struct GraphGc {
    /// The number of operations in the process when the pass began.
    begun: u64,
    /// And at the last sweep.
    collected: AtomicU64,
}

impl GraphGc {
    pub(crate) fn new() -> Self {
        let now = operations();
        Self {
            begun: now,
            collected: AtomicU64::new(now),
        }
    }

    /// Sweeps if there is enough of it. What somebody still holds stays.
    pub(crate) fn collect_if_due(&self, device: &Device) {
        let (now, collected) = (operations(), self.collected.load(Ordering::Relaxed));
        let enough = FEW.max((now - self.begun) / 16);
        let is_due = now.saturating_sub(collected) >= enough;
        let order = Ordering::Relaxed;
        // One of several threads does.
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

/// Collects abandoned operations if enough have come since this was last called: code outside of a pass that lifts tensors calls it.
/// What a caller still holds stays.
pub(crate) fn collect_graph_if_due(device: &Device) {
    static COLLECTED: AtomicU64 = AtomicU64::new(0);
    let now = operations();
    if now.saturating_sub(COLLECTED.load(Ordering::Relaxed)) >= FEW {
        COLLECTED.store(now, Ordering::Relaxed);
        collect_graph(device);
    }
}

/// Those that autodiff has numbered so far, on all threads.
fn operations() -> u64 {
    NodeId::new().value
}
