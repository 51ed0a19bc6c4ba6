//! What changes between two steps: the model, the way to train, all of it from records.

use std::path::Path;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::RecordError;
use burn::tensor::Device;

use super::Core;
use super::ranks::Ranks;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::estimate::made_on_host;
use crate::layout::Layout;
use crate::offload::{OffloadConfig, check_room_to_wait};
use crate::parameters::load_same;
use crate::pass::Session;
use crate::policy::average_id;
use crate::record;
use crate::tap::sweep;
use crate::weights::{Inventory, KeptStatistics, forked_in_codes};

/// Why a training can't go on with records.
pub(crate) enum Unfit {
    /// The record of the model is that of another.
    Model(RecordError),
    /// The record of the optimizer is that of another, or of another model.
    Optimizer(FusedError),
    /// The model can't be fused.
    Fused(FusedError),
}

/// The ranks of a model that is elsewhere now, and its running statistics, until it is there.
type Changed<M> = (Ranks<M>, KeptStatistics<M>);

impl<M: Module> Core<M> {
    /// Goes on with what `change` makes of the model. Nothing has changed if that can't be.
    pub(in crate::fused) fn change_model(
        &mut self,
        change: impl FnOnce(M) -> M,
    ) -> Result<(), FusedError> {
        let statistics = KeptStatistics::of(&self.ranks.form().module);
        let model = change(self.model());
        self.enter(self.ranks.with_model(model, &self.policies.config)?);
        statistics.commit();
        Ok(())
    }

    /// Goes on with the model in `file`, or with its trained parameters only, and this optimizer state. Nothing has changed after an
    /// error.
    pub(crate) fn resume(
        &mut self,
        file: &Path,
        trained_only: bool,
        optimizer: OptimizerRecord,
    ) -> Result<(), Unfit> {
        // Running statistics are those of the module in training, whoever loads them.
        let statistics = KeptStatistics::of(&self.ranks.form().module);
        // Straight to where the parameters rest, so that no device has to hold all.
        let model = self.ranks.form().at_home();
        let trained = trained_only.then(|| self.trained_in(&model));
        let model = load_same(model, file, trained.as_ref()).map_err(Unfit::Model)?;
        let anew = self.ranks.session().update.lock().anew();
        let optimizer = record::load(optimizer, &anew, &model).map_err(Unfit::Optimizer)?;
        let ranks = self.ranks.with_model(model, &self.policies.config);
        self.enter(ranks.map_err(Unfit::Fused)?);
        statistics.commit();
        self.begin_from(|update| update.start_over(optimizer));
        // What autodiff has noted of the parameters that were there.
        sweep(&self.ranks.device());
        Ok(())
    }

    /// Trains as `config` says, on `device` if there is one, with what was learned. Nothing has changed if that can't be.
    pub(in crate::fused) fn configure(
        &mut self,
        config: FusedConfig,
        device: Option<&Device>,
    ) -> Result<(), FusedError> {
        self.check(&config)?;
        let changed = match &self.ranks.named {
            None => self.laid_out(&config, device)?,
            Some(devices) => self.shared(devices, &config)?,
        };
        if config.gradient_checkpointing.offload_inputs {
            let ranks = changed.as_ref().map_or(&self.ranks, |(ranks, _)| ranks);
            let mut layouts = ranks.forms.iter().map(|form| &form.layout);
            layouts.try_for_each(|layout| layout.start_transfers())?;
        }
        if let Some((ranks, statistics)) = changed {
            let sums = self.has_sums();
            let views = self.ranks.views().clone();
            self.enter(ranks);
            statistics.commit();
            if self.ranks.named.is_none() {
                self.ranks.views().copy_accumulated(&views);
            } else if sums {
                log::warn!(
                    "the accumulated gradients are dropped: the ranks share the model in another way from now on"
                );
            }
        }
        self.adopt(config);
        Ok(())
    }

    /// Refuses what makes no sense, and another scale of the loss while there are sums.
    fn check(&self, config: &FusedConfig) -> Result<(), FusedError> {
        config.check(self.policies.in_state)?;
        if self.has_sums() && !self.policies.scales_as(config) {
            return Err(FusedError::Combination {
                reason: "the accumulated gradients have the scale of the loss under which they came, and can't be used under \
                         another: set it after the step that uses them, or call `drop_accumulated` before",
            });
        }
        Ok(())
    }

    /// Whether there are sums of gradients with the scale of the loss, of which what is in the state of the optimizer was freed.
    fn has_sums(&self) -> bool {
        !self.policies.in_state && self.has_accumulated()
    }

    /// Takes over a config that has been checked.
    pub(super) fn adopt(&mut self, config: FusedConfig) {
        self.place_states(&config);
        let join = self.policies.reconfigure(config);
        self.change_optimizer(|update| update.make_place(join));
    }

    /// A model alone where `config` lets it rest, and computing on `device`, by default where it does; none if it is there.
    fn laid_out(
        &self,
        config: &FusedConfig,
        device: Option<&Device>,
    ) -> Result<Option<Changed<M>>, FusedError> {
        let form = self.ranks.form();
        let before = &form.layout;
        let here = before
            .device()
            .cloned()
            .unwrap_or_else(|| self.ranks.device());
        let there = match device {
            Some(device) if device.is_autodiff() => device.clone(),
            Some(device) => device.clone().with_autodiff_context_from(&here),
            None => here,
        };
        let request = config.layout();
        let waits = request.offload.is_some();
        let names_device = device.is_some() && !waits;
        let moves = names_device && self.ranks.devices.iter().any(|device| *device != there);
        if before.is_of(&request, &there) && !moves {
            return Ok(None);
        }
        let layout = Layout::new(request, &there)?;
        let waited = before.placement.is_some();
        let stays = waits || (device.is_none() && !waited);
        let statistics = KeptStatistics::of(&form.module);
        let mut model = self.model();
        if waits {
            // What was there stays there.
            let optimizer = || self.ranks.session().update.lock().anew();
            let made = (!waited).then(|| made_on_host(&model, &optimizer(), config));
            let leaving = Inventory::take(&model, &layout)?.leaving;
            check_room_to_wait(leaving.saturating_add(made.unwrap_or_default()))?;
        }
        if !stays {
            Inventory::take(&model, &Layout::on(&there, config.compute_dtype))?;
            model = forked_in_codes(model, &there);
        }
        let ranks = Ranks::alone(model, self.ranks.session(), Arc::new(layout))?;
        Ok(Some((ranks, statistics)))
    }

    /// A model that the ranks share as `config` says; none if they do.
    fn shared(
        &self,
        devices: &[Device],
        config: &FusedConfig,
    ) -> Result<Option<Changed<M>>, FusedError> {
        if config.shares_as(&self.policies.config) {
            return Ok(None);
        }
        let statistics = KeptStatistics::of(&self.ranks.form().module);
        // From owner to owner, so that no device has to hold all weights.
        let model = self.ranks.form().at_home();
        let ranks = Ranks::on_devices(model, devices, self.ranks.session(), config)?;
        Ok(Some((ranks, statistics)))
    }

    /// Goes on with the ranks of a changed model.
    fn enter(&mut self, ranks: Ranks<M>) {
        let before = std::mem::replace(&mut self.ranks, ranks);
        let (before, views) = (before.form(), self.ranks.views().clone());
        let inventory = self.ranks.form().inventory.clone();
        let gone = before.inventory.gone_from(&inventory);
        let is_here = |id| inventory.get(id).is_some();
        let averages = gone.iter().map(|id| average_id(*id));
        let departing = gone.iter().copied().chain(averages).collect();
        let through_a_record = self.change_optimizer(|update| update.depart(departing, is_here));
        if !through_a_record {
            views.copy_groups(&before.views);
        }
    }

    /// Brings the states to where they wait by now. They go through a record, so the model was brought there before: what is
    /// refused has not touched them.
    fn place_states(&mut self, config: &FusedConfig) {
        let offload = config.offload.as_ref();
        let from = offload.and_then(OffloadConfig::states_wait_from);
        self.change_optimizer(|update| update.wait_from(from));
    }

    /// A second training from here, of a model alone.
    pub(in crate::fused) fn again(&self) -> Result<Self, FusedError> {
        let session = Arc::new(Session::new(self.ranks.session().update.lock().again()));
        let layout = self.ranks.form().layout.again()?;
        let ranks = Ranks::alone(self.model(), &session, Arc::new(layout))?;
        let mut core = Self {
            ranks,
            policies: self.policies.split(),
            reports: self.reports.clone(),
            unconfirmed: Default::default(),
        };
        // The place that the optimizer has is that of this training.
        if let Some(state) = core.policies.kept().cloned() {
            core.change_optimizer(|update| update.make_place(|it| state.join(it)));
        }
        core.place_states(&self.policies.config);
        core.ranks.views().copy_accumulated(self.ranks.views());
        Ok(core)
    }
}
