//! Changes of the model between two steps.

use burn::module::Module;

use super::FusedReplicas;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::pass::Reads;
use crate::weights::KeptStatistics;

impl<M: Module + 'static> FusedReplicas<M> {
    /// Changes the model between two steps, as [`FusedOptimizer::change_model`](crate::FusedOptimizer::change_model). With [`Sharding::Full`](crate::Sharding::Full) all weights
    /// are on the first device meanwhile.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_change_model`](Self::try_change_model) returns.
    pub fn change_model(&mut self, change: impl FnOnce(M) -> M) {
        self.try_change_model(change)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The fallible [`change_model`](Self::change_model).
    ///
    /// # Errors
    ///
    /// As [`FusedOptimizer::try_change_model`](crate::FusedOptimizer::try_change_model); nothing has changed then.
    pub fn try_change_model(&mut self, change: impl FnOnce(M) -> M) -> Result<(), FusedError> {
        let statistics = KeptStatistics::of(&self.first.form.module);
        let config = self.first.config.clone();
        self.share(change(self.model()), &config)?;
        statistics.forget(Reads::InTime);
        Ok(())
    }

    /// Goes on with replicas of `model`, shared as `config` says; nothing has changed if that can't be.
    pub(super) fn share(&mut self, model: M, config: &FusedConfig) -> Result<(), FusedError> {
        let setup = self.setup.clone().of_model(&model);
        let (mut ranks, group) = setup.ranks(model, &self.first.session, config)?;
        let (form, session) = ranks.remove(0).into_parts();
        self.first.replace_form(form, session);
        self.crew.replace(ranks, group);
        self.setup = setup;
        Ok(())
    }
}
