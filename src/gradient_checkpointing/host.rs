//! Inputs that wait for the second run, in the memory of the device or of the host.

use burn::tensor::{Bytes, Device, Tensor, TensorData};

use super::activations::{Activations, FloatMap};

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
        if !self.offload || !has_own_memory(&device) {
            self.moved.push(None);
            return tensor;
        }
        let placeholder = Tensor::zeros([1; D], (&device, tensor.dtype()));
        let data = tensor.into_data();
        // Copied at once: on devices that share the host's memory the data show what is written in
        // place later.
        let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
        let data = TensorData::from_bytes(bytes, data.shape(), data.dtype());
        self.moved.push(Some(data));
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

/// Whether the tensors of `device` lie in memory of its own.
fn has_own_memory(device: &Device) -> bool {
    #[allow(unused_variables, unreachable_patterns)] // What is there depends on the build.
    match device.as_dispatch() {
        #[cfg(feature = "cubecl")]
        burn::backend::DispatchDevice::Cube(_) => true,
        _ => false,
    }
}
