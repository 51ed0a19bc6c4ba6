use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::parameters::{AnyTensor, as_inner, with_rank};

/// Steps the parameter at `path` with `optimizer`, and returns its new value.
pub(crate) fn step_one(
    optimizer: &mut ModuleOptimizer,
    learning_rate: ModuleLearningRate,
    path: &str,
    id: ParamId,
    value: AnyTensor,
    gradient: AnyTensor,
) -> AnyTensor {
    with_rank!(value.shape().num_dims(), D => {
        let mut gradients = GradientsParams::new();
        gradients.register(id, gradient.of_rank::<D>());
        // Burn asks the parameter for its autodiff state before it takes the inner value.
        let value = Tensor::from_inner(value.of_rank::<D>());
        let param = Param::initialized(id, value);
        let stepped = optimizer.step(learning_rate, NamedParam { path, param }, gradients);
        stepped.param.into_value().inner().into()
    })
}

/// A module of one parameter that reports the parameter's path to a mapper: parameter groups match by path, and
/// optimizer records store it.
#[derive(Clone, Debug)]
struct NamedParam<'a, const D: usize> {
    path: &'a str,
    param: Param<Tensor<D>>,
}

impl<const D: usize> Module for NamedParam<'_, D> {
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
