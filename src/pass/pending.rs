//! What parameters wait for in a pass, and who owes it.

use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::reads::Reads;

/// The gradients that a parameter still waits for: one is owed by every tap, and one by every block that
/// has yet to run a second time. A debtor who is dropped owes nothing any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingCount(Arc<()>);

impl PendingCount {
    /// Whether there is no debtor but this handle.
    pub(crate) fn is_zero(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The debt of one tap.
#[derive(Clone, Debug)]
pub(crate) struct PendingGradient(Arc<Mutex<Option<PendingCount>>>);

impl PendingGradient {
    /// The gradient is there, or will never come.
    pub(crate) fn resolve(&self) {
        self.0.lock().take();
    }
}

/// An autodiff graph. Graphs share no node: each is locked while its backward steps run, and the second
/// run of a block happens in one of them.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// What the taps in it owe.
    pending_gradient: Mutex<Vec<PendingGradient>>,
}

impl Graph {
    /// A parameter is read in it: the next one, counted from zero, whose tap owes a gradient.
    pub(crate) fn read(&self, pending_count: &PendingCount) -> (usize, PendingGradient) {
        let mut pending_gradient = self.pending_gradient.lock();
        pending_gradient.push(PendingGradient(Arc::new(Mutex::new(Some(
            pending_count.clone(),
        )))));
        let read = pending_gradient.len() - 1;
        (read, pending_gradient[read].clone())
    }

    /// No backward pass goes through it: its taps owe nothing.
    pub(crate) fn abandon(&self) {
        self.pending_gradient
            .lock()
            .iter()
            .for_each(PendingGradient::resolve);
    }
}

/// The parameters that a block has read without recording, and the debt of each until the block has run a second time.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    reads: Reads,
    debts: Mutex<Vec<PendingCount>>,
}

impl Readers {
    /// Adds a parameter, if it is not there.
    pub(crate) fn add(&self, id: ParamId, path: &Arc<str>, pending_count: &PendingCount) {
        if self.reads.add(id, path) {
            self.debts.lock().push(pending_count.clone());
        }
    }

    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// The block has run again: it owes nothing but what its taps do.
    pub(crate) fn resolve(&self) {
        self.debts.lock().clear();
    }
}
