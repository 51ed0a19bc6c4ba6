use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;

use super::FusedReplicas;
use crate::device::is_cubecl;
use crate::fused::{Records, Unfit};
use crate::parameters::load_same;
use crate::pass::Reads;
use crate::weights::KeptStatistics;

impl<M: Module + 'static> Records for FusedReplicas<M> {
    fn model_record(&self) -> ModuleRecord {
        self.first.model_record()
    }

    fn optimizer_record(&self) -> OptimizerRecord {
        self.first.optimizer_record()
    }

    fn is_amid_group(&self) -> bool {
        self.first.is_amid_group()
    }

    fn try_resume(&mut self, model: ModuleRecord, optimizer: OptimizerRecord) -> Result<(), Unfit> {
        let statistics = KeptStatistics::of(&self.first.form.module);
        // Straight to the owners, so that no device has to hold all weights.
        let model = load_same(self.first.form.at_home(), model).map_err(Unfit::Model)?;
        let optimizer = self.first.loaded(optimizer, &model);
        let optimizer = optimizer.map_err(Unfit::Optimizer)?;
        let config = self.first.config.clone();
        self.share(model, &config).map_err(Unfit::Fused)?;
        statistics.forget(Reads::InTime);
        self.first.begin_with(optimizer);
        Ok(())
    }
}

impl<M: Module + 'static> FusedReplicas<M> {
    /// The same of any rank as [`FusedOptimizer::is_read_late`](crate::FusedOptimizer::is_read_late).
    pub(crate) fn is_read_late(&self) -> bool {
        self.setup.devices.iter().any(is_cubecl)
    }
}
