use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, FloatDType, Tensor};

use super::FusedOptimizer;
use crate::cast::cast;
use crate::optim::{LowBits, WeightFormat, compact_records};
use crate::record;
use crate::tap::lift;

impl<M: Module> FusedOptimizer<M> {
    /// The current model in f32, with the low bits of its weights
    /// ([`WeightFormat`](crate::optim::WeightFormat)) put back: to save, to export, to go on from with other formats.
    ///
    /// Holds a record of the optimizer for a moment, with the states as they are kept.
    pub fn full_precision_model(&self) -> M {
        let record = compact_records(|| self.to_record());
        let low_bits = record::low_bits(record).expect("Burn reads its own record");
        let joined = self.model().map(&mut Join { low_bits });
        cast(joined, FloatDType::F32)
    }
}

struct Join {
    /// The words of the low bits, and the formats of the weights that lack them.
    low_bits: HashMap<ParamId, (WeightFormat, Vec<u32>)>,
}

impl ModuleMapper for Join {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((format, words)) = self.low_bits.remove(&param.id) else {
            return param;
        };
        let (id, high, mapper) = param.consume();
        if high.dtype() != DType::BF16 {
            // Somebody has cast it since; low bits are those of bf16.
            return Param::from_mapped_value(id, high, mapper);
        }
        let requires_grad = high.is_require_grad();
        let strategy = high.gradient_checkpointing_strategy().unwrap_or_default();
        let value = LowBits::join(words, format, high.inner());
        let value = lift(value, strategy).set_require_grad(requires_grad);
        Param::from_mapped_value(id, value, mapper)
    }
}
