//! Weights rounded to the float type of a file.

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::DType;

use crate::decoder::Decoder;

/// Returns the inference model `decoder` with the numbers that a file in `dtype` holds, in f32. One tensor is rounded after the other.
pub fn rounded(decoder: Decoder, dtype: DType) -> Decoder {
    decoder.map(&mut Rounding { dtype })
}

struct Rounding {
    dtype: DType,
}

impl ModuleMapper for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            if tensor.dtype() == DType::F32 && self.dtype == DType::F32 {
                return tensor;
            }
            let device = tensor.device();
            // As the file is written: on the host.
            let data = tensor.into_data().convert_dtype(self.dtype);
            Tensor::from_data(data.convert_dtype(DType::F32), (&device, DType::F32))
        })
    }
}
