//! The parameters of a model and their gradients, each as a row.

use std::collections::HashMap;

use crate::model::Model;

use crate::common::*;

/// Gradients by parameter, each as a row.
pub type Gradients = HashMap<ParamId, Tensor<1>>;

#[derive(Clone)]
pub struct Known {
    pub id: ParamId,
    pub path: String,
    pub elements: usize,
    pub dtype: DType,
    pub value: Tensor<1>,
    pub is_trained: bool,
}

/// A visitor that collects gradients as rows.
pub struct Collected(pub GradientsParams, pub Gradients);

impl ModuleVisitor for Collected {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.0.remove::<D>(param.id) {
            self.1.insert(param.id, gradient.flatten(0, D - 1));
        }
    }
}

/// A visitor that converts rows back to gradients.
pub struct Rows(pub Gradients, pub GradientsParams);

impl ModuleVisitor for Rows {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(row) = self.0.remove(&param.id) {
            self.1
                .register(param.id, row.reshape::<D, _>(param.base().shape()));
        }
    }
}

/// Returns the parameters of a model, without quantized values.
pub fn known(model: &Model) -> Vec<Known> {
    let mut listed = Listed::default();
    model.visit(&mut listed);
    listed.1
}

#[derive(Default)]
struct Listed(Vec<String>, Vec<Known>);

impl ModuleVisitor for Listed {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.0.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let base = param.base();
        if matches!(base.dtype(), DType::QFloat(_)) {
            return;
        }
        self.1.push(Known {
            id: param.id,
            path: self.0.join("."),
            elements: base.shape().num_elements(),
            dtype: base.dtype(),
            is_trained: base.is_require_grad(),
            value: base.inner().flatten(0, D - 1),
        });
    }
}

/// A mapper that replaces values.
pub struct Put(pub Gradients);

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(row) = self.0.remove(&param.id) else {
            return param;
        };
        param.map(|value| {
            let dtype = FloatDType::from(value.dtype());
            let row = row.cast(dtype).reshape::<D, _>(value.shape());
            Tensor::from_inner(row).require_grad()
        })
    }
}
