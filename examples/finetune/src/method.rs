//! The trained part of a model.

use anyhow::Result;
use backburn::{BaseFormat, QuantizedLora};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use clap::ValueEnum;

use crate::adapters::{self, Adapters};
use crate::config::DecoderConfig;
use crate::decoder::Decoder;
use crate::first_factors;
use crate::options::Options;
use crate::weights;

/// A mapper that replaces parameters by zeros without memory.
struct Outline(FloatDType);

impl ModuleMapper for Outline {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, shape, device) = (param.id, param.lazy_shape(), param.lazy_device());
        let zero = Tensor::<D>::zeros([1; D], (&device, DType::from(self.0)));
        Param::initialized(id, zero.expand(shape).require_grad())
    }
}

/// A mapper that replaces parameters by zeros, which are made when they are first read.
struct Zeros;

impl ModuleMapper for Zeros {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        let made = shape.clone();
        let zeros = move |device: &Device, is_trained: bool| {
            Tensor::full(made, 0.0, (device, DType::F32)).set_require_grad(is_trained)
        };
        Param::uninitialized(param.id, zeros, param.lazy_device(), true, shape)
    }
}

/// Returns a model whose weights are zeros, which are made when they are first read.
pub fn zeros(config: &DecoderConfig, device: &Device) -> Decoder {
    Decoder::init(config, true, device).map(&mut Zeros)
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All weights.
    Full,
    /// Adapters of low rank on frozen weights.
    Lora,
    /// Adapters on weights in 8 bits.
    Qlora8,
    /// Adapters on weights in 4 bits.
    Qlora4,
}

impl Method {
    pub fn has_adapters(self) -> bool {
        self != Self::Full
    }

    /// Returns the value of `--method`.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}

impl Options {
    /// Returns the model of a training that a checkpoint resumes. Weights that the checkpoint contains are zeros without memory.
    pub fn outline(
        &self,
        config: &DecoderConfig,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Decoder> {
        match self.method {
            Method::Full => {
                let decoder = Decoder::init(config, !self.keep_activations, device);
                Ok(decoder.map(&mut Outline(dtype)))
            }
            // The checkpoint contains the adapters only.
            _ => self.load(config, dtype, device),
        }
    }

    /// Returns the model in the files of the base, as it is trained.
    pub fn load(
        &self,
        config: &DecoderConfig,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Decoder> {
        // The first factors of adapters are drawn.
        device.seed(self.seed);
        let decoder = Decoder::init(config, !self.keep_activations, device);
        let lora = self.adapters().lora(config.hidden).set_dtype(dtype);
        let quantized = |format| QuantizedLora::new(lora.clone(), format);
        let load = |quantized: Option<QuantizedLora>| {
            weights::load(decoder, &self.model, dtype, quantized.as_ref())
        };
        let decoder = match self.method {
            Method::Full => return load(None),
            Method::Lora => Ok(load(None)?.apply_lora(lora)),
            Method::Qlora8 => load(Some(quantized(BaseFormat::Bits8))),
            Method::Qlora4 => load(Some(quantized(BaseFormat::Bits4))),
        }?;
        let decoder = first_factors::with_deviations(decoder, config.hidden);
        match &self.adapters {
            Some(folder) => Adapters::load(decoder, &folder.join(adapters::WEIGHTS), dtype),
            None => Ok(decoder),
        }
    }
}
