use std::sync::Arc;

use burn::module::Module;

use crate::pass::Session;
use crate::weights::{FusedForm, RunningStatistics};

/// The replica of one rank.
pub(super) struct Rank<M> {
    pub(super) form: FusedForm<M>,
    pub(super) session: Arc<Session>,
}

impl<M: Module> Rank<M> {
    pub(super) fn new(form: FusedForm<M>, session: Arc<Session>) -> Self {
        Self { form, session }
    }

    pub(super) fn into_parts(self) -> (FusedForm<M>, Arc<Session>) {
        (self.form, self.session)
    }
}

/// The running statistics that all ranks have.
pub(super) fn statistics_of<M: Module>(others: &[Rank<M>]) -> RunningStatistics {
    let first = others.first();
    first.map_or_else(RunningStatistics::default, |rank| {
        RunningStatistics::of(&rank.form.module)
    })
}
