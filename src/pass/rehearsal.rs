use burn::tensor::TensorData;
use parking_lot::Mutex;

use crate::random::{Stream, Witness};

/// What two passes of a step have to agree in: the first measures the gradients, and the second uses
/// them.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    random: Stream,
    /// Of the pass under way.
    current: Mutex<Seen>,
    /// Of the first pass.
    first: Mutex<Option<Seen>>,
}

/// What there is to be seen of a pass before its first gradient is used.
#[derive(Clone, Debug, Default)]
struct Seen {
    witness: Witness,
    complete: bool,
    /// The bytes of the loss.
    loss: Option<Vec<u8>>,
}

impl Rehearsal {
    /// Of passes with the random numbers of `random`.
    pub(crate) fn new(random: Stream) -> Self {
        Self {
            random,
            current: Mutex::default(),
            first: Mutex::default(),
        }
    }

    /// A pass begins.
    pub(crate) fn start(&self) {
        let seen = std::mem::take(&mut *self.current.lock());
        if seen.complete {
            *self.first.lock() = Some(seen);
        }
        self.random.start();
    }

    /// Notes where the generators stand in the middle of the pass.
    pub(super) fn note(&self, witness: Witness) {
        self.current.lock().witness.add(witness);
    }

    /// Notes the loss, where the closure returns it.
    pub(crate) fn note_loss(&self, loss: TensorData) {
        self.current.lock().loss = Some(loss.as_bytes().to_vec());
    }

    /// The first gradient arrives: says whether the pass is like the first one, as far as there is one.
    pub(super) fn agrees(&self) -> bool {
        let mut current = self.current.lock();
        if current.complete {
            return true;
        }
        current.witness.add(self.random.witness());
        current.complete = true;
        let first = self.first.lock();
        let Some(first) = &*first else {
            return true;
        };
        if first.witness.agrees(&current.witness) {
            return true;
        }
        // Other threads have drawn numbers. If the pass draws none, there is no harm in that.
        let untouched = self.random.untouched();
        let draws_nothing = |seen: &Seen| seen.witness.agrees(&untouched);
        draws_nothing(first)
            || draws_nothing(&current)
            || first.loss.is_some() && first.loss == current.loss
    }
}
