use burn::tensor::Tensor;

use crate::error::FusedError;

/// What is asked of CubeCL's devices: on a CPU backend an operation that fails panics where it is called.
#[derive(Debug)]
pub(crate) struct AsyncErrors;

impl AsyncErrors {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn add<const D: usize>(&mut self, _path: &str, _tensor: &Tensor<D>) {}

    pub(crate) fn finish(self) -> Result<(), FusedError> {
        Ok(())
    }
}
