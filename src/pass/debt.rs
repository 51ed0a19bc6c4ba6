use std::sync::Arc;

use parking_lot::Mutex;

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
    pub(super) fn new(debt: &Debt) -> Self {
        Self(Arc::new(Mutex::new(Some(debt.clone()))))
    }

    /// The gradient is there, or will never come.
    pub(crate) fn settle(&self) {
        self.0.lock().take();
    }
}
