//! What parameters wait for in a pass, and who owes it.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
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

/// The parameters that a block has read without recording: path and debt of each, until the block has
/// run a second time.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<HashMap<ParamId, (String, Debt)>>);

impl Readers {
    /// Adds a parameter, if it is not there.
    pub(crate) fn add(&self, id: ParamId, path: &str, debt: &Debt) {
        let mut found = self.0.lock();
        found
            .entry(id)
            .or_insert_with(|| (path.to_string(), debt.clone()));
    }

    pub(super) fn ids(&self) -> Vec<ParamId> {
        self.0.lock().keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// The module that all of the parameters are in.
    pub(crate) fn place(&self) -> String {
        let found = self.0.lock();
        let mut paths = found.values().map(|(path, _)| path.clone());
        let place = paths.next().unwrap_or_default();
        paths.fold(place, |place, path| common(&place, &path))
    }

    /// The block has run again: it owes nothing but what its taps do.
    pub(crate) fn settle(&self) {
        self.0.lock().clear();
    }
}

/// The module that both paths go through.
fn common(a: &str, b: &str) -> String {
    let pairs = a.split('.').zip(b.split('.'));
    let names: Vec<&str> = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    names.join(".")
}
