use std::collections::HashMap;
use std::sync::Arc;

use backburn_base::AnyTensor;
use burn::module::{ModuleMapper, Param, ParamId, Reparameterizer};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use super::entry::{Entry, Role};
use super::handle::Handle;
use super::inventory::Inventory;
use super::local_param::{ExportLocation, LocalParam, Value};
use super::local_params::LocalParams;
use super::master_param::{MasterParam, MasterStorage};
use super::placeholder::placeholder;
use crate::pass::Session;
use crate::placement::RankContext;

/// A mapper that moves the value of every released parameter to its master, and leaves a placeholder. A retained parameter
/// stays a leaf of the module and shares its value with its master. All other parameters are unchanged.
pub(super) struct ValueExtractor<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) session: &'a Arc<Session>,
    pub(super) context: &'a Arc<RankContext>,
    /// The parameters of another rank, which share their masters with this one.
    pub(super) replica_of: Option<&'a LocalParams>,
    /// Adapters of offloaded bases, each with the path of its base.
    pub(super) adapters: &'a HashMap<ParamId, Arc<str>>,
    /// Number of released parameters: a graph reads each at most once, so a deeper node is deeper than all taps.
    pub(super) reads: usize,
    pub(super) local_params: LocalParams,
    /// Storages of masters and compute devices, one of each shared by all parameters.
    pub(super) storages: Vec<Arc<MasterStorage>>,
    pub(super) devices: Vec<Arc<Device>>,
}

impl ValueExtractor<'_> {
    /// Creates the local parameter of `value`, which has no autodiff and is stored where its role allows.
    fn local_param(
        &mut self,
        id: ParamId,
        entry: &Entry,
        value: AnyTensor,
        strategy: GradientCheckpointingStrategy,
    ) -> LocalParam {
        let (context, device) = (self.context, value.device());
        let is_retained = entry.role == Role::Retained;
        let compute_device = context.compute_device(&device);
        let compute_device = one_of(
            &mut self.devices,
            |it| **it == compute_device,
            || compute_device.clone(),
        );
        let master = match self.replica_of {
            Some(replica_of) => replica_of.get(id).master.clone(),
            None => {
                let location = match is_retained {
                    true => context.leaf_location(id, &device),
                    false => context.location(id, entry.elements(), value.dtype(), &device),
                };
                let new = || MasterStorage::new(location.clone(), context);
                let storage = one_of(&mut self.storages, |it| it.location == location, new);
                let path = entry.path.clone();
                Arc::new(MasterParam::new(
                    id, path, value, strategy, storage, context,
                ))
            }
        };
        let session = self.session.clone();
        let offloaded_base = self.adapters.get(&id).cloned();
        LocalParam::new(
            master,
            session,
            context.clone(),
            compute_device,
            is_retained,
            offloaded_base,
        )
    }
}

/// Returns the element of `known` for which `is` returns `true`, or adds a new one.
fn one_of<T>(
    known: &mut Vec<Arc<T>>,
    is: impl Fn(&Arc<T>) -> bool,
    new: impl FnOnce() -> T,
) -> Arc<T> {
    if let Some(found) = known.iter().find(|known| is(known)) {
        return found.clone();
    }
    let new = Arc::new(new());
    known.push(new.clone());
    new
}

impl ModuleMapper for ValueExtractor<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entry = self.inventory.get(param.id);
        let Some(entry) = entry.filter(|entry| entry.role != Role::Frozen) else {
            return param;
        };
        let strategy = param.base().gradient_checkpointing_strategy();
        let strategy = strategy.unwrap_or_default();
        if entry.role == Role::Retained {
            let value = param.base().inner();
            let local_param = self.local_param(param.id, entry, value.into(), strategy);
            self.local_params.add(Arc::new(local_param));
            return param;
        }
        let (id, value, mapper) = param.consume();
        let local_param = self.local_param(id, entry, value.inner().into(), strategy);
        let deeper = || local_param.clock.lock().deeper_than(self.reads);
        let Entry { path, shape, .. } = entry;
        let copy = &local_param.copy;
        let placeholder = placeholder(path, shape, copy.dtype, &copy.device, strategy, deeper);
        self.local_params.add(Arc::new(local_param));
        Param::from_mapped_value(id, placeholder, mapper)
    }
}

/// A reparameterizer that gives each placeholder the handle of its local parameter.
pub(super) struct HandleAttacher<'a>(pub(super) &'a LocalParams);

impl Reparameterizer for HandleAttacher<'_> {
    type Reparam = Handle;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Handle>) {
        let found = self.0.find(param.id);
        let Some(local_param) = found.filter(|it| !it.is_retained).cloned() else {
            return (param, None);
        };
        let handle = Handle::new(local_param.clone(), &param.base());
        // A saved clone writes the values. A loaded clone would have none.
        let (_, _, saved) = param.clone().consume();
        let path = local_param.master.path.clone();
        let param = param
            .save_mapper(move |placeholder| {
                let is_in_pass = || local_param.session.pass.lock().is_some();
                let was_updated = local_param.master.version() > 0;
                if was_updated && !placeholder.device().is_autodiff() && !is_in_pass() {
                    panic!(
                        "parameter `{}` was saved from a model that was converted (`valid()`) in the closure of a step, after that \
                         step. Such a model has no values of its own: save it in that closure, or save the result of \
                         `FusedOptimizer::valid()` between steps",
                        local_param.master.path
                    );
                }
                let value = local_param.exported(Value::Current, ExportLocation::Ordinary);
                saved.on_save(value.of_dims())
            })
            .load_mapper(move |_loaded| {
                panic!(
                    "a record was loaded into parameter `{path}` of a model in a fused step, which does \
                     not contain the values: load it between steps with `FusedOptimizer::change_model`"
                )
            });
        (param, Some(handle))
    }
}
