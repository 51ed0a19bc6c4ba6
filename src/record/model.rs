//! Records of models, written one tensor after the other.

use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::store::RecordError;
use burn::tensor::quantization::quantized_data_len;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use burn_pack::{Tensor as PackTensor, Writer};

/// Writes the record of `model` to `file`, or of the parameters in `group`, as `ModuleRecord::save` does. That holds a copy of all
/// tensors at once.
pub(crate) fn save_model<M: Module>(
    model: &M,
    group: Option<&ParamGroup>,
    file: &Path,
) -> Result<(), RecordError> {
    let mut collector = Collector {
        names: Vec::new(),
        group,
        tensors: Vec::new(),
    };
    model.visit(&mut collector);
    Ok(Writer::new(collector.tensors).write_to_file(file)?)
}

struct Collector<'a> {
    names: Vec<String>,
    group: Option<&'a ParamGroup>,
    tensors: Vec<PackTensor>,
}

impl Collector<'_> {
    /// Returns the path of the current parameter, if the group selects it.
    fn path(&self, id: ParamId) -> Option<String> {
        let path = self.names.join(".");
        let is_selected = self
            .group
            .is_none_or(|group| group.matches(&id, Some(&path)));
        is_selected.then_some(path)
    }

    fn push(&mut self, path: String, id: ParamId, data: TensorData) {
        let (bytes, shape, dtype) = data.into_parts();
        let tensor = PackTensor::new(path, dtype, shape, Some(id.val()), bytes);
        self.tensors.push(tensor);
    }
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(path) = self.path(param.id) else {
            return;
        };
        let tensor = param.transform_for_save().val();
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let bytes = match dtype {
            DType::QFloat(scheme) => quantized_data_len(&scheme, &shape),
            _ => shape.num_elements() * dtype.size(),
        };
        let id = Some(param.id.val());
        let read = move || Ok(tensor.to_data().into_parts().0);
        let tensor = PackTensor::deferred(path, dtype, shape, id, bytes, read);
        self.tensors.push(tensor);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        if let Some(path) = self.path(param.id) {
            let data = param.transform_for_save().val().into_data();
            self.push(path, param.id, data);
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        if let Some(path) = self.path(param.id) {
            let data = param.transform_for_save().val().into_data();
            self.push(path, param.id, data);
        }
    }
}
