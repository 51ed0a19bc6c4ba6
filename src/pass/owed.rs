//! What parameters wait for in a pass, and who owes it.

use std::sync::Arc;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::reads::Reads;

/// The gradients that a parameter still waits for: one is owed by every tap, and one by every block that
/// has yet to run a second time. A debtor who is dropped owes nothing any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Debt(Arc<()>);

impl Debt {
    /// Whether there is no debtor but this handle.
    pub(crate) fn is_settled(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The debt of one tap.
#[derive(Clone, Debug)]
pub(crate) struct Owed(Arc<Mutex<Option<Debt>>>);

impl Owed {
    /// The gradient is there, or will never come.
    pub(crate) fn settle(&self) {
        self.0.lock().take();
    }
}

/// An autodiff graph. Graphs share no node: each is locked while its backward steps run, and the second
/// run of a block happens in one of them.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// What the taps in it owe.
    owed: Mutex<Vec<Owed>>,
}

impl Graph {
    /// A parameter is read in it: the next one, counted from zero, whose tap owes a gradient.
    pub(crate) fn read(&self, debt: &Debt) -> (usize, Owed) {
        let mut owed = self.owed.lock();
        owed.push(Owed(Arc::new(Mutex::new(Some(debt.clone())))));
        let read = owed.len() - 1;
        (read, owed[read].clone())
    }

    /// No backward pass goes through it: its taps owe nothing.
    pub(crate) fn abandon(&self) {
        self.owed.lock().iter().for_each(Owed::settle);
    }
}

/// The parameters that a block has read without recording, and the debt of each until the block has run a second time.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    reads: Reads,
    debts: Mutex<Vec<Debt>>,
}

impl Readers {
    /// Adds a parameter, if it is not there.
    pub(crate) fn add(&self, id: ParamId, path: &Arc<str>, debt: &Debt) {
        if self.reads.add(id, path) {
            self.debts.lock().push(debt.clone());
        }
    }

    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }

    /// The block has run again: it owes nothing but what its taps do.
    pub(crate) fn settle(&self) {
        self.debts.lock().clear();
    }
}
