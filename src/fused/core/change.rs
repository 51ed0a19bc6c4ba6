//! Changes between two steps: of the model, or of the whole training from records.

use std::collections::BTreeSet;
use std::path::Path;

use backburn_base::caught::catch_message;
use backburn_base::{AnyTensor, Parameter, list};
use burn::module::{Module, ParamGroup, ParamId};
use burn::optim::ModuleOptimizer;
use burn::store::RecordError;
use burn::tensor::DType;

use super::Core;
use super::ranks::Ranks;
use crate::error::FusedError;
use crate::files::load_same;
use crate::record;
use crate::shared_optimizer::{SharedOptimizer, average_id, first_refused, updates_are_equal};
use crate::tap::collect_graph;
use crate::weights::{AttachedModule, Inventory, LocalParams};

/// The reason why a training can't resume from records.
pub(crate) enum ResumeError {
    /// The model record belongs to another model.
    Model(RecordError),
    /// The optimizer record belongs to another optimizer or model.
    Optimizer(FusedError),
    /// The model can't be fused.
    Fused(FusedError),
}

impl<M: Module> Core<M> {
    /// Replaces the model by the result of `change`. After an error nothing has changed.
    pub(in crate::fused) fn change_model(
        &mut self,
        change: impl FnOnce(M) -> M,
    ) -> Result<(), FusedError> {
        let ranks = self.ranks.changed(change, &self.policies.config)?;
        self.with_graph_collected(());
        let inventory = &ranks.attached().inventory;
        self.check_offloaded_states(inventory)?;
        let optimizer = self.ranks.optimizer.lock();
        let is_here = |id| inventory.get(id).is_some();
        let removed = self.ranks.attached().inventory.removed_in(inventory);
        let resized = removed.iter().copied().find(|id| is_here(*id));
        let returned = optimizer.removed_id_in_model(is_here).or(resized);
        // The states of the removed parameters are dropped before the record.
        let others = inventory.zeros_not_in_f32();
        let others = others.filter(|(id, ..)| !removed.contains(id));
        let returned = returned.filter(|_| !optimizer.survives_record(others));
        drop(optimizer);
        if let Some(entry) = returned.and_then(|id| inventory.get(id)) {
            return Err(FusedError::UnsupportedParameter {
                path: entry.path.to_string(),
                reason: "`change_model` removed it earlier, or changes its shape, and drops its optimizer state. Under the same id, all \
                states go through a record, which Burn loads in the default float type instead of that of the parameters, and \
                this optimizer can't step them. Use a new id (`Param::initialized(ParamId::new(), param.val())`), or train with an \
                optimizer of `backburn::optim`"
                    .to_string(),
            });
        }
        self.replace_ranks(ranks);
        Ok(())
    }

    /// Returns an error if an offloaded optimizer state can't be kept in a model with the parameters of `inventory`.
    fn check_offloaded_states(&self, inventory: &Inventory) -> Result<(), FusedError> {
        let before = &self.ranks.attached().inventory;
        let kept = |id: &ParamId| {
            let (before, after) = (before.get(*id)?, inventory.get(*id)?);
            (before.shape == after.shape).then_some((before, after))
        };
        let optimizer = self.ranks.optimizer.lock();
        let (fresh, offloaded) = (optimizer.fresh(), optimizer.offloaded_ids());
        drop(optimizer);
        let moved = offloaded.iter().filter_map(kept);
        let moved = moved.filter(|(before, after)| {
            let names = [before, after].map(|it| (it.id, &*it.path));
            before.path != after.path && !updates_are_equal(&fresh, before.shape.num_dims(), names)
        });
        match moved.min_by_key(|(before, _)| &before.path) {
            // Burn keeps the group of a state in memory, but not of one that is loaded from a record.
            Some((before, after)) => Err(FusedError::Config {
                reason: format!(
                    "`change_model` moves `{}`, whose optimizer state is offloaded, to `{}`, which is in another parameter group: define \
                    the group by ids (`ParamGroup::from_ids`)",
                    before.path, after.path
                ),
            }),
            None => Ok(()),
        }
    }

    /// Resumes from the model in `file`, or only its trained parameters, and the state in the file `optimizer`, whose velocities belong
    /// to Muon if their paths are `orthogonalized`. After an error nothing has changed.
    pub(crate) fn resume(
        &mut self,
        file: &Path,
        trained_only: bool,
        optimizer: &Path,
        orthogonalized: Option<&BTreeSet<String>>,
    ) -> Result<(), ResumeError> {
        // Loads directly to the location of the masters, so that no device has to hold the whole model.
        let model = self.ranks.export(AttachedModule::export_in_place);
        let trained = trained_only.then(|| self.trained_in(&model));
        let before: Vec<_> = list(&model).iter().map(|it| it.param.id()).collect();
        // A backend can panic on a value, as `ndarray` does on a tensor without elements.
        let model = catch_message(|| load_same(model, file, trained.as_ref()))
            .unwrap_or_else(|panic| Err(RecordError::Io(panic)))
            .map_err(ResumeError::Model)?;
        let fresh = self.ranks.optimizer.lock().fresh();
        self.check_groups(&fresh, before, &model)
            .map_err(ResumeError::Fused)?;
        let optimizer = record::load_file(optimizer, orthogonalized, &fresh, &model);
        let (optimizer, loaded) = optimizer.map_err(ResumeError::Optimizer)?;
        let ranks = self.ranks.with_model(model, &self.policies.config);
        let ranks = ranks.map_err(ResumeError::Fused)?;
        let others = ranks.attached().inventory.zeros_not_in_f32();
        let others = others.filter(|(id, ..)| loaded.contains(id));
        check_steps(&optimizer, others).map_err(ResumeError::Optimizer)?;
        self.replace_ranks(ranks);
        self.load_state(|shared| shared.start_over(optimizer));
        // Removes the graph nodes of the previous parameters.
        collect_graph(&self.ranks.device());
        Ok(())
    }

    /// Returns an error if the optimizer can't step a parameter with its loaded state.
    #[cfg(feature = "train")]
    pub(crate) fn check_loaded_states(&self) -> Result<(), FusedError> {
        let inventory = &self.ranks.attached().inventory;
        let mut others = inventory.zeros_not_in_f32().peekable();
        if others.peek().is_none() {
            return Ok(());
        }
        check_steps(&self.optimizer_with_all_states(), others)
    }

    /// Returns an error if a parameter group of the optimizer or of a hook contains the ids that parameters had `before` a load, and
    /// matches other parameters of the loaded `model`.
    fn check_groups(
        &self,
        fresh: &ModuleOptimizer,
        before: Vec<ParamId>,
        model: &M,
    ) -> Result<(), FusedError> {
        for (before, Parameter { path, param, .. }) in before.into_iter().zip(list(model)) {
            let ids = [before, param.id()];
            if ids[0] == ids[1] {
                continue;
            }
            let mut hooks = self.policies.hooks.0.iter();
            let differs = |group: &ParamGroup| {
                let [before, after] = ids.map(|id| group.matches(&id, Some(&path)));
                before != after
            };
            let what = if hooks.any(|(group, _)| differs(group)) {
                "a hook"
            } else if !updates_are_equal(
                fresh,
                param.shape().num_dims(),
                ids.map(|id| (id, &*path)),
            ) {
                "the optimizer"
            } else {
                continue;
            };
            return Err(FusedError::Config {
                reason: format!(
                    "a parameter group of {what} has the id of `{path}`, but a loaded model has the ids of its checkpoint. Use paths \
                    (`ParamGroup::from_predicate`), or load the record of `Checkpoint::model` into the model before you make the group"
                ),
            });
        }
        Ok(())
    }

    /// Replaces the ranks by those of a changed model.
    fn replace_ranks(&mut self, ranks: Ranks<M>) {
        let before = std::mem::replace(&mut self.ranks, ranks);
        let (before, local_params) = (before.attached(), self.ranks.local_params().clone());
        let inventory = self.ranks.attached().inventory.clone();
        let removed = before.inventory.removed_in(&inventory);
        let is_here = |id| inventory.get(id).is_some();
        let averages = removed.iter().map(|id| average_id(*id));
        let removed_states = removed.iter().copied().chain(averages).collect();
        let keeps_states = || record_keeps_states(&inventory, &before.local_params);
        let remove = |optimizer: &mut SharedOptimizer| {
            optimizer.remove(removed_states, is_here, keeps_states)
        };
        let through_a_record = self.change_optimizer(remove);
        if !through_a_record {
            local_params.set_accumulated_in_state(&before.local_params.accumulated_in_state());
        }
    }
}

/// Returns `true` if the optimizer states of these parameters are the same after a record.
pub(super) fn record_keeps_states(inventory: &Inventory, local_params: &LocalParams) -> bool {
    // Burn loads states in f32, and a record ends the group of micro-batches in a state.
    inventory.floats_are_in(DType::F32) && local_params.accumulated_in_state().is_empty()
}

/// Returns an error if `optimizer` can't step one of `parameters`, each with its path, and zeros of its shape and type.
fn check_steps<'a>(
    optimizer: &ModuleOptimizer,
    parameters: impl Iterator<Item = (ParamId, &'a str, AnyTensor)>,
) -> Result<(), FusedError> {
    match first_refused(optimizer, parameters) {
        None => Ok(()),
        Some((path, panic)) => Err(FusedError::UnsupportedParameter {
            path: path.to_string(),
            reason: format!(
                "the optimizer can't step it with its loaded state ({}). Burn loads states in the default float type instead of that \
                of the parameter: train parameters in f16, bf16 and f64 with an optimizer of `backburn::optim`",
                panic.message()
            ),
        }),
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::AdamConfig;
    use burn::tensor::{Device, Tensor};

    use crate::fused::{FusedOptimizer, Trainer};

    #[test]
    fn change_model_replaced_layers_leave_few_groups() {
        let device = Device::flex().autodiff();
        let layer = || -> Linear { LinearConfig::new(2, 2).init(&device) };
        let model = vec![layer(), layer()];
        let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
        for _ in 0..100 {
            let x = Tensor::<2>::ones([1, 2], &device);
            let loss = |model: &Vec<Linear>| model.iter().fold(x, |x, it| it.forward(x)).mean();
            fused.step(1e-2, loss).unwrap();
            let replaced = |model: Vec<Linear>| vec![model[0].clone(), layer()];
            fused.change_model(replaced).unwrap();
        }
        let groups = fused.core().ranks.optimizer.lock().removed_groups();
        assert!(groups <= 33, "{groups}");
    }
}
