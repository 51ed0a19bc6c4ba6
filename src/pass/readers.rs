use std::collections::HashMap;

use burn::module::ParamId;
use parking_lot::Mutex;

use super::Debt;

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
