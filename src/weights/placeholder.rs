use std::sync::Arc;

use backburn_base::lift;
use burn::backend::DispatchTensor;
#[cfg(any(feature = "flex", feature = "ndarray"))]
use burn::backend::{BackendTensor, DispatchDevice, DispatchTensorKind};
#[cfg(any(feature = "flex", feature = "ndarray"))]
use burn::tensor::{Bytes, TensorData};
use burn::tensor::{
    DType, Device, GradientCheckpointingStrategy, Shape, Tensor, TensorCreationOptions,
};

#[cfg(any(feature = "flex", feature = "ndarray"))]
use super::unreadable::UnreadableBytes;
use crate::tap::{GradientSink, PassedGradients, tap};

/// Returns the message for a read of the placeholder of the parameter at `path`.
fn bypass_message(path: &str) -> String {
    format!(
        "parameter `{path}` was read around `Param::val()` in a fused step: through `Deref`, `base()`, \
         `into_value()` or `Param::map`, or by a visitor or mapper, to which Burn passes the parameter without its \
         handle. That gives a placeholder: read it with `val()` on the model itself \
         (`weight.val().transpose()` instead of `weight.map(|it| it.transpose())`), or with `val()` on `model.valid()`, whose \
         values have no gradient. A visitor can read `FusedOptimizer::model()` between steps"
    )
}

/// Creates a tensor that takes no memory. A read panics with the message `why` on `flex` and `ndarray`; elsewhere the
/// tensor is one element of NaN.
pub(super) fn unreadable<const D: usize>(
    why: fn(&str) -> String,
    path: &Arc<str>,
    shape: &Shape,
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    #[cfg(any(feature = "flex", feature = "ndarray"))]
    let of = |bytes: fn(UnreadableBytes) -> Bytes| {
        let size = shape.num_elements() * dtype.size();
        let unreadable = UnreadableBytes::new(why, path.clone(), size);
        let data = TensorData::from_bytes(bytes(unreadable), shape.clone(), dtype);
        Tensor::from_data(data, (device, dtype))
    };
    #[allow(unreachable_patterns)] // The variants depend on the features.
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => of(UnreadableBytes::bytes),
        // The zeros are dropped with the original.
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)] // Burn 0.22 still ships ndarray.
        DispatchDevice::NdArray(_) => of(UnreadableBytes::once_cloned).clone(),
        _ => {
            let _ = (why, path); // Read by the other backends only.
            let options = TensorCreationOptions::new(device.clone()).with_dtype(dtype);
            let element = Tensor::<D>::full([1; D], f32::NAN, options);
            element.expand::<D, _>(shape.clone())
        }
    }
}

/// Returns `true` if reading an unreadable tensor on `device` panics.
fn panics_on_read(device: &Device) -> bool {
    #[allow(unreachable_patterns, deprecated)] // The variants depend on the features.
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchDevice::NdArray(_) => true,
        _ => false,
    }
}

/// Creates the placeholder of the parameter at `path`, under autodiff. If a read does not panic on `device`, a backward pass through
/// it does, before any update: it is tracked, and deeper than `below` and therefore than all taps.
pub(super) fn placeholder<const D: usize>(
    path: &Arc<str>,
    shape: &Shape,
    dtype: DType,
    device: &Device,
    strategy: GradientCheckpointingStrategy,
    below: impl FnOnce() -> DispatchTensor,
) -> Tensor<D> {
    let placeholder = lift(
        unreadable(bypass_message, path, shape, dtype, device),
        strategy,
    );
    if panics_on_read(device) {
        return placeholder;
    }
    let trap = Trap { path: path.clone() };
    tap(placeholder, below(), Arc::new(trap))
}

struct Trap {
    path: Arc<str>,
}

impl GradientSink for Trap {
    fn receive(&self, _gradient: DispatchTensor) -> PassedGradients {
        panic!("{}. No parameter was updated", bypass_message(&self.path));
    }
}

/// The address and strides of a tensor, to tell a placeholder from its replacement. `None` if the backend has no addresses, and for
/// tensors that `ndarray` has not copied yet (a placeholder, or data from a file).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity(Option<(usize, Box<[isize]>)>);

impl Identity {
    /// Returns `true` if both are known to be the same tensor.
    pub(crate) fn is_known_to_be(&self, other: &Self) -> bool {
        self.0.is_some() && self == other
    }

    #[allow(deprecated)] // Burn 0.22 still ships ndarray.
    pub(crate) fn of<const D: usize>(tensor: &Tensor<D>) -> Self {
        #[allow(unused_variables)] // The variants depend on the features.
        let at = |address: usize, shape: &[usize], strides: &[isize]| {
            let shape = shape.iter().map(|size| *size as isize);
            let order = shape.chain(strides.iter().copied()).collect();
            Self(Some((address, order)))
        };
        #[allow(unreachable_patterns)] // The variants depend on the features.
        match tensor.clone().inner().into_dispatch().kind {
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => {
                let layout = tensor.layout();
                let address = Arc::as_ptr(&tensor.data_arc()) as usize + layout.start_offset();
                at(address, layout.shape(), layout.strides())
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
                        at(address, view.shape(), view.strides())
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
