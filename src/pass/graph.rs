use parking_lot::Mutex;

use super::debt::{Debt, Owed};

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
        owed.push(Owed::new(debt));
        let read = owed.len() - 1;
        (read, owed[read].clone())
    }

    /// No backward pass goes through it: its taps owe nothing.
    pub(crate) fn abandon(&self) {
        self.owed.lock().iter().for_each(Owed::settle);
    }
}
