use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use backburn_base::{AnyTensor, MAX_DIMS, Parameter, list, with_dims};
use burn::module::{Module, ParamId};
use burn::tensor::{DType, Tensor};

use super::entry::{Entry, Role};
use super::handle::carries_handle;
use crate::device;
use crate::error::FusedError;
use crate::pass::lock_generators;
use crate::placement::RankContext;
use crate::quantized::{is_shape_stub, weight_of_values};
use crate::random::begin_unlocked;
use crate::replica::Size;
use crate::shared_optimizer::SharedOptimizer;

/// Initializes the lazy parameters of `module`, in module order, while no other training repeats its random numbers. Returns
/// an error if one of its devices is unavailable.
pub(crate) fn initialize<M: Module>(module: &M) -> Result<(), FusedError> {
    let devices = module.devices();
    devices.iter().try_for_each(device::check_there)?;
    let parameters = list(module);
    let mut lazy = parameters.iter().map(|it| &it.param);
    if lazy.all(|param| param.is_initialized()) {
        return Ok(());
    }
    let lock = lock_generators(&devices, true);
    let _unlocked = lock.is_none().then(begin_unlocked);
    parameters.iter().for_each(|it| drop(it.param.value()));
    Ok(())
}

/// The float parameters of a module by id.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    entries: HashMap<ParamId, Entry>,
    /// Bytes that are offloaded to the host.
    pub(crate) offloaded_bytes: usize,
}

impl Inventory {
    /// Lists the parameters of `module`, or returns an error if one can't be trained in `context`. Initializes lazy
    /// parameters, in module order.
    pub(crate) fn of<M: Module>(module: &M, context: &RankContext) -> Result<Self, FusedError> {
        initialize(module)?;
        let parameters = list(module);
        check_listed(&parameters)?;
        let found: Vec<_> = parameters.into_iter().map(Entry::of).collect();
        let autodiff = found.iter().any(|entry| entry.device.is_autodiff());
        if let (Some(first), false) = (found.first(), autodiff) {
            return Err(FusedError::NotAutodiff {
                path: first.path.to_string(),
                device: format!("{:?}", first.device),
            });
        }
        let mut entries = HashMap::<ParamId, Entry>::new();
        // A check of a remote device is a network request.
        let mut checked = Vec::new();
        let mut offloaded_bytes = 0;
        for mut entry in found {
            entry.check(context, &mut checked)?;
            offloaded_bytes += entry.offloaded_bytes_of(context);
            match entries.remove(&entry.id) {
                Some(first) if entry.is_trained() || first.is_trained() => {
                    return Err(FusedError::DuplicateParameter {
                        id: entry.id,
                        first: first.path.to_string(),
                        second: entry.path.to_string(),
                    });
                }
                Some(first) => {
                    entry.earlier_paths = first.earlier_paths;
                    entry.earlier_paths.push(first.path);
                }
                None => {}
            }
            entries.insert(entry.id, entry);
        }
        Ok(Self {
            entries,
            offloaded_bytes,
        })
    }

    /// Returns an error if `optimizer` can't step a trainable parameter at its location.
    pub(super) fn check_stepped(
        &self,
        optimizer: &SharedOptimizer,
        context: &RankContext,
    ) -> Result<(), FusedError> {
        let mut trained: Vec<_> = self.entries.values().filter(|it| it.is_trained()).collect();
        trained.sort_unstable_by_key(|entry| &entry.path);
        for entry in trained {
            let (id, path, dims) = (entry.id, &entry.path, entry.shape.num_dims());
            let (device, elements) = (entry.stepped_on(context), entry.elements());
            let unsupported = optimizer.unsupported(&device, id, path, dims, entry.dtype, elements);
            if let Some(reason) = unsupported {
                let path = path.to_string();
                return Err(FusedError::UnsupportedParameter { path, reason });
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, id: ParamId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(crate) fn role(&self, id: ParamId) -> Option<Role> {
        self.get(id).map(|entry| entry.role)
    }

    /// Returns the ids of all parameters that Burn's optimizers support, each with the number of its dimensions.
    pub(crate) fn ids_with_dims(&self) -> impl Iterator<Item = (ParamId, usize)> {
        let entries = self.entries.values();
        let entries = entries.map(|entry| (entry.id, entry.shape.num_dims()));
        entries.filter(|(_, dims)| *dims <= MAX_DIMS)
    }

    /// Returns the frozen parameters of `module`, in module order: id, number of dimensions, path. Burn has no gradients of more than
    /// [`MAX_DIMS`] dimensions.
    pub(super) fn frozen<M: Module>(&self, module: &M) -> Vec<(ParamId, usize, Arc<str>)> {
        let entries = list(module).into_iter();
        let entries = entries.filter_map(|it| self.get(it.param.id()));
        let frozen = entries.filter(|it| !it.is_trained() && it.shape.num_dims() <= MAX_DIMS);
        let frozen = frozen.map(|it| (it.id, it.shape.num_dims(), it.path.clone()));
        frozen.collect()
    }

    /// Returns the parameters that `changed` lacks or has in another shape.
    pub(crate) fn removed_in(&self, changed: &Self) -> Vec<ParamId> {
        let is_there = |entry: &&Entry| {
            let changed = changed.get(entry.id);
            changed.is_some_and(|changed| changed.shape == entry.shape)
        };
        let removed = self.entries.values().filter(|entry| !is_there(entry));
        removed.map(|entry| entry.id).collect()
    }

    /// Returns the number of parameters with this role.
    pub(crate) fn count(&self, role: Role) -> usize {
        self.sizes(role).count()
    }

    /// Returns `true` if every float parameter has this type; a frozen one may have an optimizer state.
    pub(crate) fn floats_are_in(&self, dtype: DType) -> bool {
        let types = self.entries.values().map(|entry| entry.dtype);
        types.filter(DType::is_float).all(|found| found == dtype)
    }

    /// Returns id and path of the trained parameters in other types than f32, and zeros like each.
    pub(crate) fn zeros_not_in_f32(&self) -> impl Iterator<Item = (ParamId, &str, AnyTensor)> {
        let entries = self.entries.values();
        let entries = entries.filter(|entry| entry.is_trained() && entry.dtype != DType::F32);
        entries.map(|entry| {
            let (shape, device) = (entry.shape.clone(), entry.device.clone().inner());
            let zeros = with_dims!(
                shape.num_dims(),
                D => Tensor::<D>::zeros(shape, (&device, entry.dtype)).into()
            );
            (entry.id, &*entry.path, zeros)
        })
    }

    /// Returns the sizes of the parameters with this role.
    pub(crate) fn sizes(&self, role: Role) -> impl Iterator<Item = Size> {
        let entries = self.entries.values();
        let entries = entries.filter(move |entry| entry.role == role);
        entries.map(Entry::size)
    }

    /// Returns the parameters that adapt one of `bases`, with the path of each base.
    pub(crate) fn adapters(
        &self,
        bases: impl Iterator<Item = ParamId>,
    ) -> HashMap<ParamId, Arc<str>> {
        let mut adapters = HashMap::new();
        for base in bases.filter_map(|id| self.get(id)) {
            for path in base.earlier_paths.iter().chain([&base.path]) {
                let adapts = |entry: &&Entry| {
                    let below = entry.path.strip_prefix(&**path);
                    below.is_some_and(|below| below.starts_with('.'))
                };
                let found = self.entries.values().filter(adapts);
                adapters.extend(found.map(|entry| (entry.id, path.clone())));
            }
        }
        adapters
    }
}

/// Returns an error if one of `parameters` is part of a fused training, a quantized weight in training, or has no values.
fn check_listed(parameters: &[Parameter]) -> Result<(), FusedError> {
    if let Some(fused) = parameters
        .iter()
        .find(|parameter| carries_handle(parameter))
    {
        let path = fused.path.clone();
        return Err(FusedError::AlreadyFused { path });
    }
    let quantized = parameters
        .iter()
        .filter_map(|it| weight_of_values(&it.path));
    let quantized: HashSet<_> = quantized.collect();
    let unfrozen = |parameter: &&Parameter| {
        // Burn's `fork` makes floats of a shape stub.
        let is_quantized = quantized.contains(&*parameter.path)
            || matches!(parameter.param.value().dtype(), DType::QFloat(_));
        parameter.reparameterization.is_some() && is_quantized && parameter.param.is_active()
    };
    if let Some(unfrozen) = parameters.iter().find(unfrozen) {
        let path = unfrozen.path.clone();
        return Err(FusedError::QuantizedInTraining { path });
    }
    let lacks_values =
        |it: &&Parameter| is_shape_stub(it.param.value().dtype()) && !quantized.contains(&*it.path);
    if let Some(empty) = parameters.iter().find(lacks_values) {
        return Err(FusedError::UnsupportedParameter {
            path: empty.path.clone(),
            reason: "it was loaded from the record of a quantized model, whose values are in its adapter, and reads as \
            NaN: load the record into a model with the same `QuantizedLora`, and call `Module::materialize` for dense weights"
                .to_string(),
        });
    }
    Ok(())
}
