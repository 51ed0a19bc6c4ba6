use std::collections::HashSet;

use parking_lot::Mutex;

/// What the passes so far have taught of a model.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    told: Mutex<HashSet<String>>,
    reads: Mutex<Option<Reads>>,
}

/// How a model reads the running states that are its own, and not those of batch normalization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Without the last update of its thread: by `RunningState::value`.
    #[default]
    Late,
    /// With it, as batch normalization does: by `RunningState::value_sync`.
    InTime,
}

impl Reads {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Late => Self::InTime,
            Self::InTime => Self::Late,
        }
    }
}

impl Learned {
    /// Whether this is told for the first time.
    pub(super) fn is_new(&self, told: String) -> bool {
        self.told.lock().insert(told)
    }

    /// How the states are read, if two runs have shown it.
    pub(crate) fn reads(&self) -> Option<Reads> {
        *self.reads.lock()
    }

    /// Two runs were alike when the states, which had an update aside, were shown like this.
    pub(crate) fn have_read(&self, reads: Reads) {
        *self.reads.lock() = Some(reads);
    }
}
