use std::collections::HashMap;

use backburn_base::Parameter;
use burn::module::{LoraAdapter, Param, ParamId, Reparameterizer};
use burn::tensor::{Device, FloatDType, Tensor};

use super::adapter::QuantizedAdapter;
use super::lora::QuantizedLora;
use super::stored::QuantizedValues;
use crate::error::listed;

/// A mapper that quantizes the weights of a model one after the other, and adds adapters after all are loaded.
#[derive(Clone, Debug)]
pub(crate) struct AdaptedBase {
    lora: QuantizedLora,
    /// The type of the adapters.
    dtype: FloatDType,
    /// Shapes and quantized values of the weights by path: copies of a layer have the same ids.
    quantized: HashMap<String, ([usize; 2], QuantizedValues)>,
    /// The path of the last parameter that is part of no adapter.
    last: String,
}

impl AdaptedBase {
    pub(crate) fn new(lora: QuantizedLora, dtype: FloatDType) -> Self {
        Self {
            lora,
            dtype,
            quantized: HashMap::new(),
            last: String::new(),
        }
    }

    /// Quantizes `param` if it has an adapter, or returns the reason why it can't be quantized.
    pub(crate) fn quantize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> Result<Param<Tensor<D>>, (Param<Tensor<D>>, String)> {
        let shape = param.lazy_shape();
        let Ok(shape) = <[usize; 2]>::try_from(&*shape.to_vec()) else {
            return Ok(param);
        };
        if !self.adapts(param.id, path) {
            return Ok(param);
        }
        let (param, values) = self.lora.quantized(path, param)?;
        self.quantized.insert(path.to_string(), (shape, values));
        Ok(param)
    }

    /// Returns an error if no matrix of the model has an adapter.
    pub(crate) fn check_group(&self, parameters: &[Parameter]) -> Result<(), String> {
        let is_matrix = |it: &&Parameter| it.param.shape().num_dims() == 2;
        let matrices: Vec<_> = parameters.iter().filter(is_matrix).collect();
        let mut matches = matrices
            .iter()
            .map(|it| self.adapts(it.param.id(), &it.path));
        if matches.any(|is_match| is_match) {
            return Ok(());
        }
        if matrices.is_empty() {
            return Err(
                "`QuantizedLora` quantizes matrices, and the model has none: use `load_from_store`"
                    .into(),
            );
        }
        let paths = listed(matrices.iter().map(|it| format!("`{}`", it.path)));
        Err(format!(
            "the parameter group of `QuantizedLora` matches no matrix of the model: choose one that matches some of {paths}"
        ))
    }

    /// Returns a parameter that is quantized now and had an adapter before.
    pub(crate) fn adapted_before<'a>(&self, parameters: &'a [Parameter]) -> Option<&'a Parameter> {
        parameters.iter().find(|parameter| {
            let quantized = self.quantized.contains_key(&parameter.path);
            quantized && parameter.reparameterization.is_some()
        })
    }

    /// Returns `true` if the matrix is adapted.
    fn adapts(&self, id: ParamId, path: &str) -> bool {
        self.lora.lora.param_group.matches(&id, Some(path))
    }

    /// Returns an adapter for a quantized matrix.
    fn adapter(&self, id: ParamId, path: &str, shape: [usize; 2], device: &Device) -> LoraAdapter {
        let options = (device, self.dtype.into());
        let matrix = match shape.contains(&0) {
            true => Tensor::<2>::zeros(shape, options),
            false => Tensor::<2>::zeros([1, 1], options).expand(shape),
        };
        let mut lora = self.lora.lora.clone();
        let (_, adapter) = lora.reparameterize(path, Param::initialized(id, matrix));
        adapter.expect("it is in the group")
    }
}

impl Reparameterizer for AdaptedBase {
    type Reparam = QuantizedAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<QuantizedAdapter>) {
        // The factors of an adapter from an earlier file remain trained.
        let below = path.strip_prefix(self.last.as_str());
        if !self.last.is_empty() && below.is_some_and(|below| below.starts_with('.')) {
            return (param, None);
        }
        self.last = path.to_string();
        let adapter = self.quantized.get(path).map(|(shape, values)| {
            let device = param.lazy_device();
            let adapter = self.adapter(param.id, path, *shape, &device);
            QuantizedAdapter::new(adapter, values.clone())
        });
        (param.set_require_grad(false), adapter)
    }
}
