//! The step of one parameter by Burn's [`ModuleOptimizer`].

use backburn_base::caught::Caught;
use backburn_base::{AnyTensor, with_dims};
use backburn_optim::call::Call;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::parameters::as_inner;

/// Returns the path of the first parameter that `optimizer` can't step, with its panic. Each parameter has its path, and zeros of its
/// shape and type.
pub(crate) fn first_refused<'a>(
    optimizer: &ModuleOptimizer,
    mut parameters: impl Iterator<Item = (ParamId, &'a str, AnyTensor)>,
) -> Option<(&'a str, Caught)> {
    parameters.find_map(|(id, path, zeros)| {
        // A clone for each, so that no more than one state exists twice.
        let mut optimizer = optimizer.clone();
        let step = || step_one(&mut optimizer, 0.0.into(), path, id, zeros.clone(), zeros);
        let stepped = Call::default().make(step).0;
        stepped.err().map(|panic| (path, panic))
    })
}

/// Steps the parameter at `path` with `optimizer`, and returns its new value.
pub(crate) fn step_one(
    optimizer: &mut ModuleOptimizer,
    learning_rate: ModuleLearningRate,
    path: &str,
    id: ParamId,
    value: AnyTensor,
    gradient: AnyTensor,
) -> AnyTensor {
    with_dims!(value.shape().num_dims(), D => {
        let mut gradients = GradientsParams::new();
        gradients.register(id, gradient.of_dims::<D>());
        // Burn asks the parameter for its autodiff state before it takes the inner value.
        let value = Tensor::from_inner(value.of_dims::<D>());
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
