use burn::backend::Dispatch;
use burn::backend::ops::{FloatTensorOps, QTensorOps};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};

use super::{is_cubecl, sent};

/// What `tensor`, which has no autodiff, holds now.
///
/// CubeCL reads when the data are first looked at, and shows what has been written in place by then; meanwhile the
/// memory of the device stays taken. So it is looked at, and copied, at once.
pub(crate) fn read<const D: usize>(tensor: Tensor<D>) -> TensorData {
    // With a second handle nobody writes in place.
    let _kept = tensor.clone();
    let data = tensor.into_data();
    let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
    TensorData::from_bytes(bytes, data.shape(), data.dtype())
}

/// `tensor`, which has no autodiff, on `device`: what it holds now. The rank in its type doesn't matter.
pub(crate) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    let from = tensor.device();
    if !is_cubecl(&from) || from == *device {
        return sent(tensor, device);
    }
    let (data, device) = (read(tensor), device.as_dispatch());
    // `Tensor::from_data` would ask the type for the rank.
    Tensor::from_dispatch(match data.dtype() {
        DType::QFloat(_) => Dispatch::q_from_data(data, device),
        _ => Dispatch::float_from_data(data, device),
    })
}
