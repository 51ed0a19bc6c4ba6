//! Counts of the gradients that are still expected in a pass.

use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::reads::Reads;

/// The number of gradients that a parameter still expects: one from every tap, and one from every block that is not
/// recomputed yet. Dropping a clone decreases the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingCount(Arc<()>);

impl PendingCount {
    /// Returns `true` if no other clone exists.
    pub(crate) fn is_zero(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The pending gradient of one tap.
#[derive(Clone, Debug)]
pub(crate) struct PendingGradient(Arc<Mutex<Option<PendingCount>>>);

impl PendingGradient {
    /// Decreases the count: the gradient has arrived, or will never arrive.
    pub(crate) fn resolve(&self) {
        self.0.lock().take();
    }
}

/// An autodiff graph. Graphs share no node: each is locked while its backward steps run, and a recomputation happens
/// in one of these steps.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// The pending gradients of the taps in the graph.
    pending_gradient: Mutex<Vec<PendingGradient>>,
}

impl Graph {
    /// Adds a read. Returns its number, counted from zero, and its pending gradient.
    pub(crate) fn read(&self, pending_count: &PendingCount) -> (usize, PendingGradient) {
        let mut pending_gradient = self.pending_gradient.lock();
        pending_gradient.push(PendingGradient(Arc::new(Mutex::new(Some(
            pending_count.clone(),
        )))));
        let read = pending_gradient.len() - 1;
        (read, pending_gradient[read].clone())
    }

    /// Resolves all pending gradients: no backward pass will reach this graph.
    pub(crate) fn abandon(&self) {
        self.pending_gradient
            .lock()
            .iter()
            .for_each(PendingGradient::resolve);
    }
}

/// The parameters that a block has read without recording, with a pending gradient for each until the block is
/// recomputed.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    reads: Reads,
    pending_counts: Mutex<Vec<PendingCount>>,
}

impl Readers {
    /// Adds a parameter, unless it was added before.
    pub(crate) fn add(&self, id: ParamId, path: &Arc<str>, pending_count: &PendingCount) {
        if self.reads.add(id, path) {
            self.pending_counts.lock().push(pending_count.clone());
        }
    }

    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Resolves the pending gradients of the block after its recomputation. Those of its taps remain.
    pub(crate) fn resolve(&self) {
        self.pending_counts.lock().clear();
    }
}
