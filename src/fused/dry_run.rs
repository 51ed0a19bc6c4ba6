//! A pass that changes nothing.

use burn::module::Module;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::loss::Loss;
use crate::memory;
use crate::parameters::ModelKey;
use crate::weights::KeptStatistics;

impl<M: Module> FusedOptimizer<M> {
    /// Forward and backward that change nothing: gradients are released, and used for nothing; hooks are not called. Running
    /// statistics are put back. Only random numbers are drawn, as in a step, and [`last_step`](Self::last_step) tells of the run.
    ///
    /// With a recorder it tells before the first step, and before there is any optimizer state, what activations
    /// a pass will hold: [`MemoryEstimate::peaks`](crate::MemoryEstimate::peaks).
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_dry_run`](Self::try_dry_run) returns; if `forward` panics.
    pub fn dry_run<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        self.try_dry_run(forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`dry_run`](Self::dry_run).
    ///
    /// # Errors
    ///
    /// If the loss depends on no trainable parameter.
    pub fn try_dry_run<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> Result<L, FusedError> {
        let _statistics = KeptStatistics::of(&self.form.module);
        memory::enter_dry_run(|| ModelKey::of(&self.form.module));
        let plan = self.policies.dry_plan();
        let loss = self.pass_of_loss(plan.into(), forward)?;
        self.check_reached()?;
        Ok(loss)
    }
}
