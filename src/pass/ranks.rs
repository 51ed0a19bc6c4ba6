use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::FusedError;
use crate::replica::{Membership, Turn};

/// The place of a pass among those of other ranks.
#[derive(Debug)]
pub(crate) struct AmongRanks {
    pub(crate) member: Membership,
    /// Its turn to draw random numbers in the forward pass.
    forward: Mutex<Option<Turn>>,
}

impl AmongRanks {
    pub(super) fn new(member: Membership) -> Arc<Self> {
        let forward = Mutex::default();
        Arc::new(Self { member, forward })
    }

    /// Waits for the turn to draw random numbers, if the ranks take turns.
    pub(super) fn take_turn(self: &Arc<Self>) -> Result<Option<Turn>, FusedError> {
        let group = &self.member.group;
        let turn = || Turn::take(self, group, self.member.device());
        group.takes_turns().then(turn).transpose()
    }

    /// Takes the turn for the forward pass.
    pub(crate) fn begin_turn(self: &Arc<Self>) -> Result<(), FusedError> {
        let turn = self.take_turn()?;
        *self.forward.lock() = turn;
        Ok(())
    }

    /// The forward pass is over.
    pub(crate) fn end_turn(&self) {
        self.forward.lock().take();
    }

    /// The code of the user goes on, which may have a turn.
    pub(crate) fn show_life(self: &Arc<Self>) {
        if self.member.group.takes_turns() {
            Turn::show_life(self);
        }
    }
}
