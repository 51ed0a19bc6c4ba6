use std::ops::Deref;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, BackendTensor, DispatchKindConversion, DispatchTensor};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};

use crate::{copy_to_device, in_type, lift, to_device};

/// A float tensor with any number of dimensions, with the type of a tensor of one. Burn stores the number only in the type;
/// neither the properties of a tensor nor element-wise operations use it. For other functions use
/// [`of_dims`](Self::of_dims), with [`with_dims`](crate::with_dims) if the number is known only at run time.
#[derive(Clone, Debug)]
pub struct AnyTensor(pub Tensor<1>);

impl AnyTensor {
    /// Returns the tensor with its number of dimensions in the type.
    ///
    /// # Panics
    ///
    /// If the tensor has another number of dimensions.
    pub fn of_dims<const D: usize>(self) -> Tensor<D> {
        let dims = self.shape().num_dims();
        assert!(
            dims == D,
            "a tensor of {dims} dimensions was taken for one of {D}"
        );
        Tensor::from_dispatch(self.0.into_dispatch())
    }

    /// Returns `value` (without autodiff), moved to the device of this tensor. If this tensor is under autodiff, the result
    /// is a constant under autodiff.
    pub fn replaced_by(&self, value: Tensor<1>) -> Self {
        let value = copy_to_device(value, &self.device().inner());
        match self.gradient_checkpointing_strategy() {
            Some(strategy) => lift(value, strategy).into(),
            None => value.into(),
        }
    }

    /// Casts the tensor to this float type.
    pub fn in_type(self, dtype: DType) -> Self {
        Self(in_type(self.0, dtype))
    }

    /// Copies the current value to `device`. The tensor must have no autodiff.
    pub fn copy_to_device(self, device: &Device) -> Self {
        Self(copy_to_device(self.0, device))
    }

    /// Transfers the tensor to `device`, in the order of the device's operations.
    pub fn to_device(self, device: &Device) -> Self {
        Self(to_device(self.0, device))
    }

    /// Adds `other`, in the type and the buffer of this tensor.
    pub fn added(self, other: Self) -> Self {
        let other = in_type(other.0, self.0.dtype());
        Self(self.0.add(other))
    }

    /// Returns the tensor as a constant under autodiff.
    pub fn lifted(self, strategy: GradientCheckpointingStrategy) -> Self {
        Self(lift(self.0, strategy))
    }
}

/// Largest number of dimensions that Burn's optimizers support.
pub const MAX_DIMS: usize = 8;

/// Evaluates `$do` with `$D` as a constant equal to `$dims`, for the numbers of dimensions that Burn's optimizers support.
#[macro_export]
macro_rules! with_dims {
    ($dims:expr, $D:ident => $do:expr) => {
        $crate::with_dims!(1 2 3 4 5 6 7 8: $dims, $D => $do)
    };
    ($($known:literal)*: $dims:expr, $D:ident => $do:expr) => {
        match $dims {
            $($known => {
                const $D: usize = $known;
                $do
            })*
            dims => unreachable!("Burn has no optimizer for a tensor of {dims} dimensions"),
        }
    };
}

impl<const D: usize> From<Tensor<D>> for AnyTensor {
    fn from(tensor: Tensor<D>) -> Self {
        Self(Tensor::from_dispatch(tensor.into_dispatch()))
    }
}

impl Deref for AnyTensor {
    type Target = Tensor<1>;

    fn deref(&self) -> &Tensor<1> {
        &self.0
    }
}

/// Returns the tensor as a primitive of its backend `B`.
pub fn primitive<B>(tensor: DispatchTensor) -> FloatTensor<B>
where
    B: Backend,
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensor = DispatchTensor::try_into_backend(tensor);
    let tensor = tensor.expect("a tensor stays on its backend");
    let BackendTensor::Float(tensor) = tensor else {
        unreachable!("a float tensor stays one")
    };
    tensor
}

/// A float parameter with any number of dimensions.
pub trait AnyParam {
    fn id(&self) -> ParamId;

    /// Returns the shape. A lazy parameter stays lazy.
    fn shape(&self) -> Shape;

    fn is_initialized(&self) -> bool;

    /// Returns the value without autodiff attributes. A lazy parameter is initialized.
    fn value(&self) -> AnyTensor;

    /// Returns `true` if its device has autodiff. A lazy parameter stays lazy.
    fn is_autodiff(&self) -> bool;

    /// Returns `true` if the parameter is configured to be trained, even if its value is quantized.
    fn is_active(&self) -> bool;

    /// Returns the address of the value. Clones share it.
    fn place(&self) -> *const ();
}

impl<const D: usize> AnyParam for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn shape(&self) -> Shape {
        self.lazy_shape()
    }

    fn is_initialized(&self) -> bool {
        self.is_initialized()
    }

    fn value(&self) -> AnyTensor {
        self.base().into()
    }

    fn is_autodiff(&self) -> bool {
        self.lazy_device().is_autodiff()
    }

    fn is_active(&self) -> bool {
        // Burn applies this configuration when it creates a value for training.
        let mapped = self.clone().map(|value| {
            let device = value.device().inner();
            Tensor::zeros([1; D], (&device, DType::F32))
        });
        mapped.train().is_require_grad()
    }

    fn place(&self) -> *const () {
        std::ptr::from_ref::<Tensor<D>>(self).cast()
    }
}
