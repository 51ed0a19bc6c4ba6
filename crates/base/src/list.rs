use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::any::{AnyParam, AnyTensor};

/// A float parameter of a module. It shares its value with the module, and stays lazy.
pub struct Parameter {
    pub param: Box<dyn AnyParam>,
    pub path: String,
    /// Name of its reparameterization.
    pub reparameterization: Option<String>,
}

/// Returns the values of these parameters of `module`.
pub fn values<M: Module>(module: &M, among: &HashSet<ParamId>) -> HashMap<ParamId, AnyTensor> {
    if among.is_empty() {
        return HashMap::new();
    }
    let found = list(module).into_iter().map(|parameter| parameter.param);
    let found = found.filter(|param| among.contains(&param.id()));
    found.map(|param| (param.id(), param.value())).collect()
}

/// Returns the float parameters of `module`, in its order. The list is a second owner of all of them.
pub fn list<M: Module>(module: &M) -> Vec<Parameter> {
    let mut lister = Lister::default();
    module.visit(&mut lister);
    lister.found
}

#[derive(Default)]
struct Lister {
    names: Vec<String>,
    found: Vec<Parameter>,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn visits a reparameterized parameter first, then enters its reparameterization.
        if container_type == "Reparameterization"
            && let Some(parameter) = self.found.last_mut()
        {
            parameter.reparameterization = Some(name.to_string());
        }
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push(Parameter {
            param: Box::new(with_value(param)),
            path: self.names.join("."),
            reparameterization: None,
        });
    }
}

/// Returns `param`, or for the stored values of a quantized base the form that records contain. Visitors see these values as a
/// parameter without elements, so that they are not counted twice.
pub fn with_value<const D: usize>(param: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    let is_shown = !param.is_initialized() && param.lazy_shape().num_elements() == 0;
    match is_shown {
        true => param.transform_for_save(),
        false => param.clone(),
    }
}
