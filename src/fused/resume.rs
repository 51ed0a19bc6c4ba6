//! A training as records, and from records.

use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::{ModuleRecord, RecordError};

use super::FusedOptimizer;
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::parameters::load_same;
use crate::pass::Reads;
use crate::policy::AverageKeeper;
use crate::record;
use crate::weights::{FusedForm, KeptStatistics};

/// A training that can be saved as records, and go on with them.
pub trait Records {
    /// The model, every parameter where it rests: what is on a CubeCL device is read when the record is saved, which has to
    /// be before the next step.
    fn model_record(&self) -> ModuleRecord;

    /// The state of the optimizer, which is read likewise.
    fn optimizer_record(&self) -> OptimizerRecord;

    /// Whether there are gradients of micro-batches: a record holds none, or does not tell them from those of a whole step.
    fn is_amid_group(&self) -> bool;

    /// Goes on with the model and the optimizer state of these records. Nothing has changed if that can't be.
    fn try_resume(&mut self, model: ModuleRecord, optimizer: OptimizerRecord) -> Result<(), Unfit>;
}

/// Why a training can't go on with records.
pub enum Unfit {
    /// The record of the model is that of another.
    Model(RecordError),
    /// The record of the optimizer is that of another, or of another model.
    Optimizer(FusedError),
    /// The model can't be fused.
    Fused(FusedError),
}

impl<M: Module> Records for FusedOptimizer<M> {
    fn model_record(&self) -> ModuleRecord {
        // With the updates of running statistics that Burn keeps aside, which stay there for this training.
        let _statistics = KeptStatistics::of(&self.form.module);
        self.form.at_home().into_record()
    }

    fn optimizer_record(&self) -> OptimizerRecord {
        self.session.update().to_record()
    }

    fn is_amid_group(&self) -> bool {
        self.has_accumulated()
    }

    fn try_resume(&mut self, model: ModuleRecord, optimizer: OptimizerRecord) -> Result<(), Unfit> {
        // Running statistics are those of the module in training, whoever loads them.
        let statistics = KeptStatistics::of(&self.form.module);
        let model = load_same(self.model(), model).map_err(Unfit::Model)?;
        let optimizer = self.loaded(optimizer, &model).map_err(Unfit::Optimizer)?;
        let layout = self.form.layout().clone();
        let form = FusedForm::new(model, &self.session, layout).map_err(Unfit::Fused)?;
        self.replace_form(form, self.session.clone());
        statistics.forget(Reads::InTime);
        self.begin_with(optimizer);
        Ok(())
    }
}

impl<M: Module> FusedOptimizer<M> {
    /// Whether what leaves the devices is read when somebody looks, and shows what was written in place by then.
    pub(crate) fn is_read_late(&self) -> bool {
        self.form.module.devices().iter().any(is_cubecl)
    }

    /// The optimizer with the states in `record`, which are of the parameters of `model`.
    pub(super) fn loaded(
        &self,
        record: OptimizerRecord,
        model: &M,
    ) -> Result<ModuleOptimizer, FusedError> {
        let optimizer = self.session.update().anew();
        let optimizer = match self.policies.keeper() {
            Some(keeper) => keeper.join(optimizer),
            None => optimizer,
        };
        let optimizer = match self.policies.averages() {
            true => AverageKeeper::join(optimizer),
            false => optimizer,
        };
        record::load(record, &optimizer, model)
    }

    /// Goes on with `optimizer`, loaded for the model that has just come.
    pub(super) fn begin_with(&mut self, optimizer: ModuleOptimizer) {
        self.session.update().begin_with(optimizer);
        self.begin_group();
    }

    /// Goes on with the optimizer state that has just come.
    pub(super) fn begin_group(&mut self) {
        // Those of before belong to other weights.
        let homes = self.form.views().homes();
        homes.for_each(|home| home.average(None));
        self.restore_policies();
        self.average();
        if self.has_accumulated() {
            log::warn!("the accumulated gradients are dropped: they belong to the state of before");
        }
        self.drop_accumulated();
        let homes = self.form.views().homes();
        homes.for_each(|home| home.forget_group());
    }
}
