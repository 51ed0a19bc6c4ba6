use std::sync::Arc;

use burn::backend::{BackendTensor, DispatchDevice, DispatchTensor, DispatchTensorKind};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{
    Bytes, DType, Device, GradientCheckpointingStrategy, Shape, Tensor, TensorCreationOptions,
    TensorData,
};

use super::inventory::{Inventory, Role};
#[cfg(feature = "flex")]
use super::unreadable::nothing;
#[cfg(feature = "ndarray")]
use super::unreadable::nothing_once_cloned;
use crate::pass::Session;
use crate::tap::{GradientSink, Passed, join, lift};

/// What a placeholder has in common with the value that it stands for.
#[derive(Clone, Debug)]
pub(crate) struct Likeness {
    shape: Shape,
    pub(super) dtype: DType,
    /// Without autodiff.
    pub(super) device: Device,
}

impl Likeness {
    /// Of `value`, where it is.
    pub(super) fn of<const D: usize>(value: &Tensor<D>) -> Self {
        Self {
            shape: value.shape(),
            dtype: value.dtype(),
            device: value.device().inner(),
        }
    }

    /// The same on another device.
    pub(super) fn on(&self, device: &Device) -> Self {
        Self {
            device: device.clone(),
            ..self.clone()
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.shape.num_elements() * self.dtype.size()
    }
}

/// A tensor that costs nothing of the size of its shape: on `flex` and `ndarray` to read it panics, elsewhere it is one
/// element of NaN.
fn unreadable<const D: usize>(likeness: &Likeness, why: String) -> Tensor<D> {
    #[cfg(any(feature = "flex", feature = "ndarray"))]
    let of = move |bytes: fn(String, usize) -> Bytes| {
        let (shape, dtype) = (likeness.shape.clone(), likeness.dtype);
        let data = TensorData::from_bytes(bytes(why, likeness.bytes()), shape, dtype);
        Tensor::from_data(data, (&likeness.device, dtype))
    };
    #[allow(unreachable_patterns)] // What is there depends on the build.
    match likeness.device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => of(nothing),
        // The zeros go with what is cloned.
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)] // Burn 0.22 still ships ndarray.
        DispatchDevice::NdArray(_) => of(nothing_once_cloned).clone(),
        _ => {
            let device = likeness.device.clone();
            let options = TensorCreationOptions::new(device).with_dtype(likeness.dtype);
            let element = Tensor::<D>::full([1; D], f32::NAN, options);
            element.expand::<D, _>(likeness.shape.clone())
        }
    }
}

/// Stands for a value that an optimizer has taken along.
pub(super) fn gone<const D: usize>(likeness: &Likeness, why: String) -> Tensor<D> {
    unreadable(likeness, why)
}

/// What is wrong with a read of a placeholder.
fn around(path: &str) -> String {
    format!(
        "parameter `{path}` was read around `Param::val()` in a fused step: through `Deref`, `base()` or \
         `into_value()`, or by a visitor or mapper, which Burn hands a parameter without what is \
         attached to it. That gives a placeholder: read it with `val()` on the model itself, or read \
         `model.valid()`, whose values have no gradient"
    )
}

/// The placeholder of a parameter in fused form: a backward pass through it panics with the path.
///
/// It is deeper than the taps of so many `reads`: the trap springs before any parameter is updated.
pub(crate) fn trap<const D: usize>(
    likeness: &Likeness,
    path: &str,
    session: &Session,
    reads: usize,
    strategy: GradientCheckpointingStrategy,
) -> Tensor<D> {
    let trap = Trap {
        path: path.to_string(),
    };
    let below = session.below(reads, &likeness.device, strategy);
    let placeholder = lift(unreadable(likeness, around(path)), strategy);
    join(placeholder, below, Arc::new(trap))
}

#[derive(Debug)]
struct Trap {
    path: String,
}

impl GradientSink for Trap {
    fn receive(&self, _gradient: DispatchTensor) -> Passed {
        panic!("{}. No parameter was updated", around(&self.path));
    }
}

/// Tells a placeholder from a tensor that has been put in its place: where its elements lie, and in which
/// order. None where the backend does not tell, and for what `ndarray` has not copied yet: a placeholder, and what comes
/// straight from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity(Option<(usize, Vec<usize>, Vec<isize>)>);

impl Identity {
    /// Whether the backend tells that both are one.
    pub(super) fn is_surely(&self, other: &Self) -> bool {
        self.0.is_some() && self == other
    }

    #[allow(deprecated)] // Burn 0.22 still ships ndarray.
    pub(crate) fn of<const D: usize>(tensor: &Tensor<D>) -> Self {
        #[allow(unreachable_patterns)] // What is there depends on the build.
        match tensor.clone().inner().into_dispatch().kind {
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => {
                let layout = tensor.layout();
                let address = Arc::as_ptr(&tensor.data_arc()) as usize + layout.start_offset();
                let shape = layout.shape().to_vec();
                Self(Some((address, shape, layout.strides().to_vec())))
            }
            #[cfg(feature = "ndarray")]
            DispatchTensorKind::NdArray(BackendTensor::Float(tensor)) if tensor.is_borrowed() => {
                Self(None)
            }
            #[cfg(feature = "ndarray")]
            DispatchTensorKind::NdArray(BackendTensor::Float(tensor)) => {
                use burn::backend::ndarray::NdArrayTensor;

                macro_rules! of_view {
                    ($view:expr) => {{
                        let view = $view;
                        let address = view.as_ptr() as usize;
                        Self(Some((
                            address,
                            view.shape().to_vec(),
                            view.strides().to_vec(),
                        )))
                    }};
                }
                match tensor {
                    NdArrayTensor::F32(storage) => of_view!(storage.view()),
                    NdArrayTensor::F64(storage) => of_view!(storage.view()),
                    _ => Self(None),
                }
            }
            _ => Self(None),
        }
    }
}

/// The structure of `module` without the values of its trainable parameters.
/// These have placeholders, on `device` if there is one.
pub(crate) fn hollow<M: Module>(module: M, inventory: &Inventory, device: Option<&Device>) -> M {
    module.map(&mut Hollow { inventory, device })
}

struct Hollow<'a> {
    inventory: &'a Inventory,
    device: Option<&'a Device>,
}

impl ModuleMapper for Hollow<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entry = self.inventory.get(param.id);
        let Some(entry) = entry.filter(|entry| entry.role != Role::Frozen) else {
            return param;
        };
        param.map(|value| {
            let mut likeness = Likeness::of(&value);
            if let Some(device) = self.device {
                likeness.device = device.clone();
            }
            unreadable(&likeness, around(&entry.path))
        })
    }
}
