use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Tensor};

use super::FusedOptimizer;
use crate::cast::{cast, leaf};
use crate::optim::{LowBits, recorded_low_bits};
use crate::optimizer_record::{read, written};
use crate::pass::Session;

impl<M: Module> FusedOptimizer<M> {
    /// The current model in f32, with the low bits of its weights
    /// ([`WeightFormat`](crate::optim::WeightFormat)) put back: to save, to export, to go on from with other formats.
    ///
    /// Beside the model that it makes, it holds one parameter and its state at a time.
    pub fn full_precision_model(&self) -> M {
        let session = self.core.ranks.session();
        let joined = self.model().map(&mut Join { session });
        cast(joined, FloatDType::F32)
    }
}

struct Join<'a> {
    session: &'a Session,
}

impl ModuleMapper for Join<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Low bits are those of bf16; somebody may have cast it since.
        if !param.is_initialized() || param.val().dtype() != DType::BF16 {
            return param;
        }
        let record = self.session.update().record_of(param.id);
        let states = written(record).and_then(read);
        let states = states.expect("Burn reads its own record");
        let low_bits = states.values().find_map(recorded_low_bits);
        let Some((format, words)) = low_bits else {
            return param;
        };
        param.map(|high| leaf(high, |high| LowBits::join(words, format, high)))
    }
}
