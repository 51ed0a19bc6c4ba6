//! Tensors that have the shape of a quantized weight and no values ("shape stubs").
//!
//! # Memory
//!
//! Layers, parameter counts and records read the shape of a weight, but its quantized values have another shape. So the
//! parameter is a tensor of the weight's shape, and the adapter holds the quantized values. On `flex` the tensor is one
//! byte. Elsewhere each element has the fewest bits that Burn moves and records: 2, or 8 if the last dimension is no multiple of
//! 16. Its type distinguishes it from every other tensor.

use backburn_base::{copy_to_device, is_cpu_backend, is_flex, lift, of_data};
use burn::backend::Dispatch;
use burn::backend::ops::QTensorOps;
use burn::tensor::quantization::quantized_data_len;
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

/// Returns the scheme of whole bytes. Burn's `ndarray` loads no other values.
fn byte_scheme() -> QuantScheme {
    QuantScheme::default()
        .with_value(QuantValue::Q8F)
        .with_store(QuantStore::Native)
        .per_tensor(ScaleDtype::UE8M0)
}

/// Returns the scheme of 2-bit elements in 32-bit words.
fn packed_scheme() -> QuantScheme {
    QuantScheme::default()
        .with_value(QuantValue::Q2F)
        .with_store(QuantStore::PackedU32(0))
        .per_tensor(ScaleDtype::F16)
}

/// Returns `true` if a tensor of this type is a shape stub: no other tensor has this scheme.
pub(crate) fn is_shape_stub(dtype: DType) -> bool {
    let DType::QFloat(found) = dtype else {
        return false;
    };
    let is = |scheme: QuantScheme| found.with_store(scheme.store) == scheme;
    is(byte_scheme()) || is(packed_scheme())
}

/// Returns `true` if `base` is a weight. Burn's `fork` dequantizes a shape stub, which reads as NaN.
pub(super) fn is_weight<const D: usize>(base: &Tensor<D>) -> bool {
    if is_shape_stub(base.dtype()) || base.shape().num_elements() == 0 {
        return false;
    }
    let base = base.clone().inner();
    let first = base.clone().slice(std::array::from_fn::<_, D, _>(|_| 0..1));
    // Almost always the first element suffices.
    !first.is_nan().into_scalar::<bool>() || !base.is_nan().all().into_scalar::<bool>()
}

/// Returns a tensor of the shape of `value`, on its device. It reads as NaN.
pub(super) fn shape_stub_of<const D: usize>(value: &Tensor<D>) -> Tensor<D> {
    let shape_stub = shape_stub(value.shape(), &value.device().inner());
    match value.gradient_checkpointing_strategy() {
        Some(strategy) => lift(shape_stub, strategy),
        None => shape_stub,
    }
}

/// Returns `true` if a shape stub on `device` is one element, expanded without memory.
pub(crate) fn is_expanded(device: &Device) -> bool {
    is_flex(device)
}

/// Returns `tensor`, which has no autodiff, on `device`. The number of dimensions in its type doesn't matter.
pub(crate) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    match is_shape_stub(tensor.dtype()) && tensor.device() != *device {
        true => shape_stub(tensor.shape(), device),
        false => copy_to_device(tensor, device),
    }
}

fn shape_stub<const D: usize>(shape: Shape, device: &Device) -> Tensor<D> {
    if is_cpu_backend(device) {
        let is_empty = shape.num_elements() == 0;
        let one = Shape::from(vec![usize::from(!is_empty); shape.num_dims()]);
        let values = vec![0_i8; one.num_elements()];
        let data = TensorData::quantized(values, one, byte_scheme(), &[f32::NAN], None);
        let one = of_data::<D>(data, device);
        return match is_empty {
            true => Tensor::from_dispatch(Dispatch::q_reshape(one.into_dispatch(), shape)),
            false => Tensor::from_dispatch(Dispatch::q_expand(one.into_dispatch(), shape)),
        };
    }
    // CubeCL refuses rows that end within a word.
    let row = shape.iter().last().copied().unwrap_or_default();
    let (scheme, nan) = match row % packed_scheme().num_quants() {
        0 => (packed_scheme(), 0x7e00_u16.to_ne_bytes().to_vec()), // in f16
        _ => (byte_scheme(), vec![0xff]),                          // in UE8M0
    };
    let mut bytes = vec![0; quantized_data_len(&scheme, &shape)];
    let scale = bytes.len() - nan.len();
    bytes[scale..].copy_from_slice(&nan);
    of_data(
        TensorData::from_bytes_vec(bytes, shape, DType::QFloat(scheme)),
        device,
    )
}
