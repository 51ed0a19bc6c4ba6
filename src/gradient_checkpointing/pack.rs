//! Several tensors as one, for an operation that takes one.

use burn::tensor::{Device, Tensor};

use super::activations::FloatMap;

/// Collects tensors, to join them into one.
#[derive(Default)]
pub(super) struct Pack {
    tensors: Vec<Tensor<1>>,
    only_tracked: bool,
}

impl FloatMap for Pack {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if tensor.is_tracked() || !self.only_tracked {
            self.tensors.push(flat(tensor.clone()));
        }
        tensor
    }
}

impl Pack {
    /// For the tensors that need a gradient.
    pub(super) fn of_tracked() -> Self {
        Self {
            tensors: Vec::new(),
            only_tracked: true,
        }
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.tensors.iter().any(Tensor::is_tracked)
    }

    /// All elements one after the other, if there are tensors; they are those of the block `name`.
    pub(super) fn pack(self, name: &str) -> Option<Tensor<1>> {
        let first = self.tensors.first()?;
        let (dtype, device) = (first.dtype(), first.device());
        assert!(
            self.tensors.iter().all(|tensor| tensor.dtype() == dtype),
            "the recomputed block {name} takes or returns float tensors of several dtypes: cast them \
             inside of it"
        );
        Some(joined(self.tensors, &device))
    }
}

/// Gives tensors their part of the joined one.
pub(super) struct Unpack {
    packed: Tensor<1>,
    start: usize,
}

impl Unpack {
    pub(super) fn new(packed: Tensor<1>) -> Self {
        Self { packed, start: 0 }
    }
}

impl FloatMap for Unpack {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let shape = tensor.shape();
        let end = self.start + shape.num_elements();
        let part = match (self.start, self.packed.dims()) {
            (0, [length]) if length == end => self.packed.clone(),
            _ => self
                .packed
                .clone()
                .narrow(0, self.start, shape.num_elements()),
        };
        self.start = end;
        moved(part.reshape(shape), &tensor.device())
    }
}

pub(super) fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let elements = tensor.shape().num_elements();
    tensor.reshape([elements])
}

/// All elements one after the other, on `device`.
pub(super) fn joined(tensors: Vec<Tensor<1>>, device: &Device) -> Tensor<1> {
    let tensors = tensors.into_iter().map(|tensor| moved(tensor, device));
    let mut tensors: Vec<_> = tensors.collect();
    match tensors.len() {
        1 => tensors.remove(0),
        _ => Tensor::cat(tensors, 0),
    }
}

/// `tensor` on `device`: the same tensor, if it is there.
pub(super) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    match tensor.device() == *device {
        true => tensor,
        false => tensor.to_device(device),
    }
}
