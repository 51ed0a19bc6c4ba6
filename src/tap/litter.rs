use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::autodiff::NodeId;
use burn::tensor::Device;

use super::sweep;

/// Operations that may lie around in any case.
const FEW: u64 = 256;

/// What runs without recording leave behind: autodiff notes all operations of its tensors, and keeps the note of one
/// that nobody can go back through until it is swept up.
///
/// A sweep looks at all that autodiff has. So there is one whenever a sixteenth of the operations of the pass have come
/// since the last: little lies around, and all sweeps together take time in proportion to the operations.
#[derive(Debug)]
pub(crate) struct Litter {
    /// The number of operations in the process when the pass began.
    begun: u64,
    /// And at the last sweep.
    swept: AtomicU64,
}

impl Litter {
    pub(crate) fn new() -> Self {
        let now = operations();
        Self {
            begun: now,
            swept: AtomicU64::new(now),
        }
    }

    /// Sweeps if there is enough of it. What somebody still holds stays.
    pub(crate) fn sweep(&self, device: &Device) {
        let (now, swept) = (operations(), self.swept.load(Ordering::Relaxed));
        let enough = FEW.max((now - self.begun) / 16);
        let is_due = now.saturating_sub(swept) >= enough;
        let order = Ordering::Relaxed;
        // One of several threads does.
        if is_due
            && self
                .swept
                .compare_exchange(swept, now, order, order)
                .is_ok()
        {
            sweep(device);
        }
    }
}

/// Collects abandoned operations if enough have come since this was last called: code outside of a pass that lifts tensors calls it.
/// What a caller still holds stays.
pub(crate) fn sweep_litter(device: &Device) {
    static SWEPT: AtomicU64 = AtomicU64::new(0);
    let now = operations();
    if now.saturating_sub(SWEPT.load(Ordering::Relaxed)) >= FEW {
        SWEPT.store(now, Ordering::Relaxed);
        sweep(device);
    }
}

/// Those that autodiff has numbered so far, on all threads.
fn operations() -> u64 {
    NodeId::new().value
}
