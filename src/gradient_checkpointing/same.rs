use burn::tensor::Tensor;

use super::activations::{Activations, FloatMap};

/// What a block has returned, to be compared with what it returns in another run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Same(Vec<Vec<u8>>);

impl Same {
    /// Reads `output`, which waits for the device.
    pub(super) fn of<Y: Activations>(output: Y) -> (Y, Self) {
        let mut same = Self::default();
        (output.map_floats(&mut same), same)
    }
}

impl FloatMap for Same {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let data = tensor.clone().inner().into_data();
        // Bytes, since a NaN is not equal to itself.
        self.0.push(data.as_bytes().to_vec());
        tensor
    }
}
