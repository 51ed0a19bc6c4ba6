use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::module::{Reparameterization, Reparameterizer};
use burn::tensor::{Device, Tensor};

use super::handle::FETCH_HANDLE;
use super::read::refuse_outside_of_a_block;
use crate::placement::RankContext;

/// A reparameterizer of frozen parameters, and of those of an exported model: they are stored elsewhere or in another
/// type, and fetched whenever they are read.
pub(super) struct FetchOnRead {
    pub(super) context: Arc<RankContext>,
    pub(super) parameters: HashSet<ParamId>,
    /// Frozen adapters of offloaded bases, with the path of each base.
    pub(super) adapters: HashMap<ParamId, Arc<str>>,
}

impl Reparameterizer for FetchOnRead {
    type Reparam = FetchHandle;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<FetchHandle>) {
        let base = self.adapters.get(&param.id).cloned();
        let is_on_demand = base.is_some() || self.parameters.contains(&param.id);
        let handle = is_on_demand.then(|| FetchHandle {
            context: self.context.clone(),
            path: path.into(),
            base,
            device: None,
        });
        (param, handle)
    }
}

/// A handle that fetches a parameter to its compute device.
#[derive(Clone, Debug)]
pub(super) struct FetchHandle {
    context: Arc<RankContext>,
    path: Arc<str>,
    /// The path of the offloaded base that the parameter adapts.
    base: Option<Arc<str>>,
    /// The target device, if the model was moved.
    device: Option<Device>,
}

impl Reparameterization for FetchHandle {
    const NAME: &'static str = FETCH_HANDLE;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        if let Some(path) = &self.base {
            refuse_outside_of_a_block(path);
        }
        let value = self.context.to_compute(&self.path, base.into());
        let value = value.unwrap_or_else(|error| panic!("{error}"));
        let value = match &self.device {
            None => value,
            Some(device) => value.to_device(device),
        };
        value.of_dims()
    }
}

/// A module without parameters.
impl Module for FetchHandle {
    /// Inserts the compute device before the device of the stored value, because programs use the first device of a module.
    fn collect_devices(&self, mut devices: Vec<Device>) -> Vec<Device> {
        let device = self.device.as_ref().or(self.context.device());
        if let Some(device) = device.filter(|device| !devices.contains(device)) {
            let device = match devices.iter().any(Device::is_autodiff) {
                true => device.clone().autodiff(),
                false => device.clone().inner(),
            };
            devices.insert(0, device);
        }
        devices
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &Device) -> Self {
        Self {
            device: Some(device.clone()),
            ..self
        }
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {}

    fn map<M: ModuleMapper>(self, _mapper: &mut M) -> Self {
        self
    }
}
