use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use crate::parameters::as_inner;

/// A single parameter that shows its path in the model to a mapper: parameter groups match by
/// path and optimizer records store it.
#[derive(Clone, Debug)]
pub(super) struct Addressed<'a, const D: usize> {
    pub(super) path: &'a str,
    pub(super) param: Param<Tensor<D>>,
}

impl<const D: usize> Module for Addressed<'_, D> {
    as_inner!(param);

    fn fork(self, device: &Device) -> Self {
        let param = self.param.fork(device);
        Self { param, ..self }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        // Burn joins the names of the entered modules with dots, so one name can hold the path.
        visitor.enter_module(self.path, "Parameter");
        self.param.visit(visitor);
        visitor.exit_module(self.path, "Parameter");
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        mapper.enter_module(self.path, "Parameter");
        let param = Module::map(self.param, mapper);
        mapper.exit_module(self.path, "Parameter");
        Self { param, ..self }
    }
}
