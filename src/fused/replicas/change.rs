//! Changes between two steps: how the ranks share a model, and of the model itself.

use burn::module::Module;

use super::FusedReplicas;
use super::setup::Setup;
use crate::error::FusedError;
use crate::pass::Reads;
use crate::replica::{Ownership, Sharding};
use crate::slot::KeptStatistics;

impl<M: Module + 'static> FusedReplicas<M> {
    /// Chooses what a rank keeps of the parameters that it does not own. Accumulated gradients are dropped.
    ///
    /// # Panics
    ///
    /// As [`change_model`](Self::change_model).
    #[must_use]
    pub fn with_sharding(self, sharding: Sharding) -> Self {
        self.set_up(|setup| setup.sharding = sharding)
    }

    /// Chooses which rank owns a parameter. Accumulated gradients are dropped.
    ///
    /// # Panics
    ///
    /// As [`change_model`](Self::change_model).
    #[must_use]
    pub fn with_ownership(self, ownership: Ownership) -> Self {
        self.set_up(|setup| setup.ownership = ownership)
    }

    /// Lets a rank be at most so many gradients ahead of the slowest; 2 by default. Accumulated gradients are
    /// dropped.
    ///
    /// Gradients that have arrived at their owner wait there for those of the other ranks: for N ranks that are
    /// read in the same order at most (N - 1) (`max_lead` + 1). Ranks that compute them in another order, or
    /// have none for many parameters, let more of them wait.
    ///
    /// # Panics
    ///
    /// As [`change_model`](Self::change_model).
    #[must_use]
    pub fn with_max_lead(self, max_lead: usize) -> Self {
        self.set_up(|setup| setup.max_lead = max_lead)
    }

    /// Lets the forward passes of the ranks run at once: for closures that draw no random numbers (dropout, noise).
    /// Accumulated gradients are dropped.
    ///
    /// By default ranks take turns at Burn's random generators, which are one a process. If a closure draws after all, its
    /// numbers are others in every run; a block that runs twice notices it, and the step ends with
    /// [`FusedError::RandomNumbers`].
    ///
    /// # Panics
    ///
    /// As [`change_model`](Self::change_model).
    #[must_use]
    pub fn without_random_numbers(self) -> Self {
        self.set_up(|setup| setup.draws = false)
    }

    fn set_up(mut self, choose: impl FnOnce(&mut Setup)) -> Self {
        choose(&mut self.setup);
        // From owner to owner, so that no device has to hold all weights.
        let model = self.first.form.with_owners();
        self.share(model).unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// Changes the model between two steps, as [`FusedOptimizer::change_model`](crate::FusedOptimizer::change_model). With [`Sharding::Full`] all weights
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
        self.share(change(self.model()))?;
        statistics.forget(Reads::InTime);
        Ok(())
    }

    /// Goes on with replicas of `model`; nothing has changed if that can't be.
    fn share(&mut self, model: M) -> Result<(), FusedError> {
        let setup = self.setup.clone().of_model(&model);
        let (mut ranks, group) = setup.ranks(model, &self.first.session)?;
        let (form, session) = ranks.remove(0).into_parts();
        self.first.replace_form(form, session);
        self.crew.replace(ranks, group);
        self.setup = setup;
        Ok(())
    }
}
