use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Shape};

use super::handle::is_in_form;
use crate::device;
use crate::error::FusedError;
use crate::layout::Layout;
use crate::parameters::{Parameter, list};
use crate::policy::Update;
use crate::tap;

/// What becomes of a float parameter in fused form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Trainable: its value is at its home, and updated as its gradient completes.
    Released,
    /// Trainable, but it carries a reparameterization already (an unfrozen LoRA base), and a
    /// parameter can carry one only: an ordinary leaf, updated at the end of the pass.
    Retained,
    /// Frozen or a running statistic: not touched.
    Frozen,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) elements: usize,
    shape: Shape,
    pub(crate) role: Role,
    /// It is tracked by autodiff, but no leaf.
    computed: bool,
    dtype: DType,
    device: Device,
}

impl Entry {
    fn of(parameter: Parameter) -> Self {
        let value = parameter.param.value();
        Self {
            path: parameter.path,
            elements: value.shape().num_elements(),
            shape: value.shape(),
            role: if !value.is_require_grad() {
                Role::Frozen
            } else if parameter.reparameterization.is_some() {
                Role::Retained
            } else {
                Role::Released
            },
            computed: value.is_tracked() && !value.is_require_grad(),
            dtype: value.dtype(),
            device: value.device(),
        }
    }
}

/// The float parameters of a module by id.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    entries: HashMap<ParamId, Entry>,
}

impl Inventory {
    /// Takes stock of `module` and refuses what can't be trained in fused form under `layout`. Initializes lazy
    /// parameters, in module order.
    pub(crate) fn take<M: Module>(module: &M, layout: &Layout) -> Result<Self, FusedError> {
        device::check_all_there(&module.devices())?;
        let parameters = list(module);
        if let Some(fused) = parameters.iter().find(|parameter| is_in_form(parameter)) {
            let path = fused.path.clone();
            return Err(FusedError::AlreadyFused { path });
        }
        let thawed = |parameter: &&Parameter| {
            let is_quantized = matches!(parameter.param.value().dtype(), DType::QFloat(_));
            is_quantized && parameter.reparameterization.is_some() && parameter.param.is_active()
        };
        if let Some(thawed) = parameters.iter().find(thawed) {
            let path = thawed.path.clone();
            return Err(FusedError::QuantizedInTraining { path });
        }
        let found = parameters.into_iter();
        let found = found.map(|parameter| (parameter.param.id(), Entry::of(parameter)));
        let found = found.collect::<Vec<_>>();
        let autodiff = found.iter().any(|(_, entry)| entry.device.is_autodiff());
        if let (Some((_, first)), false) = (found.first(), autodiff) {
            return Err(FusedError::NotAutodiff {
                path: first.path.clone(),
                device: format!("{:?}", first.device),
            });
        }

        let mut entries = HashMap::<ParamId, Entry>::new();
        // A server is asked over the network.
        let mut checked = Vec::new();
        for (id, entry) in found {
            let dtype = layout.compute_dtype(entry.dtype);
            let device = layout.device().unwrap_or(&entry.device);
            let placement = layout.placement();
            if entry.role == Role::Released && !tap::covers(device) {
                return Err(FusedError::BackendNotCovered {
                    device: format!("{device:?}"),
                    path: entry.path,
                });
            }
            let site = match entry.role {
                Role::Released => layout.site(id, entry.elements, entry.dtype, device),
                _ => layout.site_of_leaf(id, device),
            };
            // Where it is already, a frozen one may be in any type.
            let goes = device.clone().inner() != entry.device.clone().inner();
            let needed = entry.role != Role::Frozen || goes;
            let computed = needed.then(|| (device.clone().inner(), dtype));
            let rests = entry.role == Role::Released && !site.is_host;
            let rests = rests.then(|| (site.device.clone(), entry.dtype));
            // The ordinary model of a rank is on its device.
            let ordinary = layout.member().filter(|_| needed && placement.is_none());
            let ordinary = ordinary.map(|member| (member.device().clone(), entry.dtype));
            for asked in [computed, rests, ordinary].into_iter().flatten() {
                if !checked.contains(&asked) {
                    device::check(&asked.0, asked.1)?;
                    checked.push(asked);
                }
            }
            // All of the ordinary model is there.
            if let Some(placement) = placement
                && !placement.host().supports_dtype(entry.dtype)
            {
                return Err(FusedError::Offload {
                    reason: format!(
                        "parameter `{}` is {:?}, which the host {:?} does not have: use `OffloadHost::Flex`",
                        entry.path,
                        entry.dtype,
                        placement.host()
                    ),
                });
            }
            if let Some(placement) = placement
                && placement.states_wait()
                && entry.role != Role::Frozen
                && entry.dtype != DType::F32
            {
                return Err(FusedError::Offload {
                    reason: format!(
                        "parameter `{}` is {:?}, and optimizer states wait in f32: use `Offload::Updates`",
                        entry.path, entry.dtype
                    ),
                });
            }
            if dtype != entry.dtype && entry.role != Role::Released {
                return Err(FusedError::ComputeDtype {
                    path: entry.path,
                    dtype: format!("{:?}", entry.dtype),
                    compute_dtype: format!("{dtype:?}"),
                });
            }
            if entry.computed {
                return Err(FusedError::NotALeaf { path: entry.path });
            }
            let trainable = entry.role != Role::Frozen;
            match entries.get(&id) {
                Some(first) if trainable || first.role != Role::Frozen => {
                    return Err(FusedError::DuplicateParameter {
                        id,
                        first: first.path.clone(),
                        second: entry.path,
                    });
                }
                _ => entries.insert(id, entry),
            };
        }
        Ok(Self { entries })
    }

    /// Refuses a parameter in training that `update` does not step.
    pub(super) fn check_stepped(&self, update: &Update) -> Result<(), FusedError> {
        let trained = self.entries.iter();
        let mut trained: Vec<_> = trained.filter(|(_, e)| e.role != Role::Frozen).collect();
        trained.sort_unstable_by_key(|(_, entry)| &entry.path);
        for (id, Entry { path, shape, .. }) in trained {
            if let Some(reason) = update.unfit(*id, path, shape.num_dims()) {
                let path = path.clone();
                return Err(FusedError::Unfit { path, reason });
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

    /// The parameters that `changed` has no more, or in another shape.
    pub(crate) fn gone_from(&self, changed: &Self) -> Vec<ParamId> {
        let is_there = |id: &ParamId, entry: &Entry| {
            let changed = changed.get(*id);
            changed.is_some_and(|changed| changed.shape == entry.shape)
        };
        let gone = self
            .entries
            .iter()
            .filter(|(id, entry)| !is_there(id, entry));
        gone.map(|(id, _)| *id).collect()
    }

    /// The number of parameters with this role, and of elements in them.
    pub(crate) fn count(&self, role: Role) -> (usize, usize) {
        let entries = self.entries.values().filter(|entry| entry.role == role);
        entries.fold((0, 0), |(parameters, elements), entry| {
            (parameters + 1, elements + entry.elements)
        })
    }

    /// The parameters with this role, with their paths and numbers of elements.
    pub(crate) fn sizes(&self, role: Role) -> Vec<(ParamId, String, usize)> {
        let entries = self.entries.iter().filter(|(_, entry)| entry.role == role);
        let sizes = entries.map(|(id, entry)| (*id, entry.path.clone(), entry.elements));
        sizes.collect()
    }

    /// The parameters with this role, and the bytes of each.
    pub(crate) fn bytes(&self, role: Role) -> Vec<(ParamId, usize)> {
        let entries = self.entries.iter().filter(|(_, entry)| entry.role == role);
        let bytes = entries.map(|(id, entry)| (*id, entry.elements * entry.dtype.size()));
        bytes.collect()
    }

    /// The parameters that adapt one of `bases`, and the path of the base of each.
    pub(crate) fn adapters(
        &self,
        bases: impl Iterator<Item = ParamId>,
    ) -> HashMap<ParamId, Arc<str>> {
        let mut adapters = HashMap::new();
        for base in bases.filter_map(|id| self.get(id)) {
            let path: Arc<str> = base.path.as_str().into();
            let adapts = |entry: &Entry| {
                let below = entry.path.strip_prefix(&*path);
                below.is_some_and(|below| below.starts_with('.'))
            };
            let found = self.entries.iter().filter(|(_, entry)| adapts(entry));
            adapters.extend(found.map(|(id, _)| (*id, path.clone())));
        }
        adapters
    }
}
