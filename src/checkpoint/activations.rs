use burn::tensor::{Bool, Device, GradientCheckpointingStrategy, Gradients, Int, Tensor};

use crate::tap::lift;

/// What goes into a checkpointed block and comes out of it: tensors, and tuples, options and lists of
/// them.
pub trait Activations: Clone + Send + 'static {
    /// Applies `map` to every float tensor, in order.
    #[doc(hidden)]
    fn map_floats<M: FloatMap>(self, map: &mut M) -> Self;
}

/// A function of float tensors of any rank.
#[doc(hidden)]
pub trait FloatMap {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
}

impl<const D: usize> Activations for Tensor<D> {
    fn map_floats<M: FloatMap>(self, map: &mut M) -> Self {
        map.map(self)
    }
}

impl<const D: usize> Activations for Tensor<D, Int> {
    fn map_floats<M: FloatMap>(self, _map: &mut M) -> Self {
        self
    }
}

impl<const D: usize> Activations for Tensor<D, Bool> {
    fn map_floats<M: FloatMap>(self, _map: &mut M) -> Self {
        self
    }
}

impl<T: Activations> Activations for Option<T> {
    fn map_floats<M: FloatMap>(self, map: &mut M) -> Self {
        self.map(|activations| activations.map_floats(map))
    }
}

impl<T: Activations> Activations for Vec<T> {
    fn map_floats<M: FloatMap>(self, map: &mut M) -> Self {
        let all = self.into_iter();
        all.map(|activations| activations.map_floats(map)).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {
        $(#[allow(non_snake_case)]
        impl<$($name: Activations),*> Activations for ($($name,)*) {
            fn map_floats<Map: FloatMap>(self, map: &mut Map) -> Self {
                let ($($name,)*) = self;
                ($($name.map_floats(map),)*)
            }
        })*
    };
}

tuples!((A B) (A B C) (A B C D) (A B C D E));

/// Takes tensors out of their autodiff graph.
#[derive(Default)]
pub(super) struct Keep {
    /// Which of them it was.
    pub(super) tracked: Vec<bool>,
    pub(super) devices: Vec<Device>,
    pub(super) strategy: GradientCheckpointingStrategy,
    /// One of them had no autodiff: the model is used for inference.
    pub(super) without_autodiff: bool,
}

impl FloatMap for Keep {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.tracked.push(tensor.is_tracked());
        self.devices.push(tensor.device());
        if let Some(strategy) = tensor.gradient_checkpointing_strategy() {
            self.strategy = strategy;
        }
        if !tensor.is_autodiff() {
            self.without_autodiff = true;
            return tensor;
        }
        tensor.inner()
    }
}

/// Brings tensors back into autodiff, untracked.
pub(super) struct Lift {
    pub(super) strategy: GradientCheckpointingStrategy,
}

impl FloatMap for Lift {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        lift(tensor, self.strategy)
    }
}

/// Brings tensors back into autodiff as leaves, if they were tracked before.
pub(super) struct Leaves<'a> {
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) tracked: std::slice::Iter<'a, bool>,
    /// The gradient of each, flat.
    pub(super) gradients: Vec<FlatGradient>,
}

pub(super) type FlatGradient = Box<dyn FnOnce(&Gradients) -> Tensor<1>>;

impl FloatMap for Leaves<'_> {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let elements = tensor.shape().num_elements();
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let zeros = move || Tensor::zeros([elements], (&device, dtype));
        let lifted = lift(tensor, self.strategy);
        if !self.tracked.next().is_some_and(|tracked| *tracked) {
            self.gradients.push(Box::new(move |_| zeros()));
            return lifted;
        }
        let leaf = lifted.require_grad();
        let asked = leaf.clone();
        self.gradients.push(Box::new(move |gradients| {
            asked.grad(gradients).map_or_else(zeros, flat)
        }));
        leaf
    }
}

/// Collects tensors, to join them into one.
#[derive(Default)]
pub(super) struct Pack(Vec<Tensor<1>>);

impl FloatMap for Pack {
    fn map<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(flat(tensor.clone()));
        tensor
    }
}

impl Pack {
    pub(super) fn is_tracked(&self) -> bool {
        self.0.iter().any(Tensor::is_tracked)
    }

    pub(super) fn is_without_autodiff(&self) -> bool {
        self.0.iter().any(|tensor| !tensor.is_autodiff())
    }

    /// All elements one after the other, if there are tensors; they are those of the block `name`.
    pub(super) fn pack(self, name: &str) -> Option<Tensor<1>> {
        let dtype = self.0.first()?.dtype();
        assert!(
            self.0.iter().all(|tensor| tensor.dtype() == dtype),
            "the checkpointed block `{name}` takes or returns float tensors of several dtypes: cast them \
             inside of it"
        );
        Some(joined(self.0))
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
        part.reshape(shape)
    }
}

pub(super) fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let elements = tensor.shape().num_elements();
    tensor.reshape([elements])
}

pub(super) fn joined(mut tensors: Vec<Tensor<1>>) -> Tensor<1> {
    match tensors.len() {
        1 => tensors.remove(0),
        _ => Tensor::cat(tensors, 0),
    }
}
