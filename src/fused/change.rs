//! Changes of a fused model between two steps.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::pass::{Reads, Session};
use crate::policy::average_id;
use crate::weights::{FusedForm, KeptStatistics};

impl<M: Module> FusedOptimizer<M> {
    /// Changes the model between two steps: freeze or thaw parameters, load other weights, remove a layer.
    ///
    /// ```
    /// # use backburn::FusedOptimizer;
    /// # use burn::{module::Module, module::ParamGroup, nn::LinearConfig, optim::SgdConfig, tensor::Device};
    /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    /// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    /// fused.change_model(|model| model.freeze_group(ParamGroup::from_predicate("bias")));
    /// ```
    ///
    /// The optimizer keeps the state of every parameter, frozen ones too; the states of those that are gone from the
    /// model, or have another shape, are dropped. Accumulated gradients are dropped, but for those in the optimizer
    /// state.
    ///
    /// A parameter that comes back under the id of one that was removed starts anew. The other states go through a record
    /// then, as in [`try_load_record`](Self::try_load_record), and those that gradients were accumulated in begin a new
    /// group.
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
    /// As [`try_new`](Self::try_new) on the model that `change` returns; nothing has changed then.
    pub fn try_change_model(&mut self, change: impl FnOnce(M) -> M) -> Result<(), FusedError> {
        let statistics = KeptStatistics::of(&self.form.module);
        let layout = self.form.layout().clone();
        let form = FusedForm::new(change(self.model()), &self.session, layout)?;
        self.replace_form(form, self.session.clone());
        statistics.forget(Reads::InTime);
        Ok(())
    }

    /// Goes on with a changed model, whose views are those of `session`.
    pub(super) fn replace_form(&mut self, form: FusedForm<M>, session: Arc<Session>) {
        let gone = self.form.inventory().gone_from(form.inventory());
        let is_here = |id| form.inventory().get(id).is_some();
        let averages = gone.iter().map(|id| average_id(*id));
        let departing = gone.iter().copied().chain(averages).collect();
        let through_a_record = session.update().depart(departing, is_here);
        if !through_a_record {
            form.views().copy_groups(self.form.views());
        }
        form.views()
            .copy_averages(self.form.views(), |id| gone.contains(&id));
        (self.form, self.session) = (form, session);
        if through_a_record {
            self.keep_policies();
            if self.policies.averages() {
                self.make_place_for_averages();
            }
        }
        self.average();
    }

    /// Moves the model to `device` and trains it there, as [`Module::fork`]. The optimizer state
    /// follows at the next step.
    ///
    /// # Panics
    ///
    /// If this build does not cover the backend of `device`.
    pub fn fork(&mut self, device: &Device) {
        let config = self.config.clone();
        self.lay_out(&config, Some(device))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// [`fork`](Self::fork) by value.
    #[must_use]
    pub fn to_device(mut self, device: &Device) -> Self {
        self.fork(device);
        self
    }
}
