//! Frozen blocks with adapters.

use backburn::{BaseFormat, QuantizedLora};
use burn::module::{Lora, Module, ParamGroup};
use burn::tensor::{Device, Tensor};

use super::Kind;
use super::residual::Mlp;

/// Frozen blocks with small trained matrices added to their weights.
#[derive(Module, Debug)]
pub struct Adapted {
    inner: Mlp,
}

impl Kind for Adapted {
    const NAME: &'static str = "LoRA";
    const BATCH: usize = 256;

    fn init(device: &Device) -> Self {
        let lora = Lora::new(4, 8.0).set_param_group(ParamGroup::from_predicate("weight"));
        Self {
            inner: Mlp::init(device).apply_lora(lora),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        self.inner.loss(items)
    }
}

/// Frozen blocks with quantized weights and small trained matrices.
#[derive(Module, Debug)]
pub struct InCodes {
    inner: Mlp,
}

impl Kind for InCodes {
    const NAME: &'static str = "LoRA on 4 bits";
    const BATCH: usize = 256;

    fn init(device: &Device) -> Self {
        let lora = Lora::new(4, 8.0).set_param_group(ParamGroup::from_predicate("weight"));
        let lora = QuantizedLora::new(lora, BaseFormat::Bits4);
        Self {
            inner: Mlp::init(device).apply_reparameterization(lora),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        self.inner.loss(items)
    }
}
