//! Inputs that wait for the second run, in the memory of the device or of the host.

use burn::tensor::{Tensor, TensorData};

use super::activations::{Activations, FloatMap};
use crate::device::{is_cubecl, read};

/// The input of a block between its runs, without autodiff.
pub(super) struct KeptInput<X> {
    /// The input, with placeholders for what is on the host.
    input: X,
    /// For every float tensor what it holds, if that is on the host.
    moved: Vec<Option<TensorData>>,
}

impl<X: Activations> KeptInput<X> {
    /// Keeps `input`, on the host if it is to be offloaded from a device with memory of its own.
    pub(super) fn new(input: X, offload: bool) -> Self {
        let mut down = Down {
            offload,
            moved: Vec::new(),
        };
        let input = input.map_floats(&mut down);
        let moved = down.moved;
        Self { input, moved }
    }

    /// The input, where it was.
    pub(super) fn take(self) -> X {
        let moved = self.moved.into_iter();
        self.input.map_floats(&mut Up { moved })
    }
}

struct Down {
    offload: bool,
    moved: Vec<Option<TensorData>>,
}

impl FloatMap for Down {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let device = tensor.device();
        if !self.offload || !is_cubecl(&device) {
            self.moved.push(None);
            return tensor;
        }
        let placeholder = Tensor::zeros([1; D], (&device, tensor.dtype()));
        self.moved.push(Some(read(tensor)));
        placeholder
    }
}

struct Up {
    moved: std::vec::IntoIter<Option<TensorData>>,
}

impl FloatMap for Up {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match self.moved.next().flatten() {
            Some(data) => Tensor::from_data(data, (&tensor.device(), tensor.dtype())),
            None => tensor,
        }
    }
}
