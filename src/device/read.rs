use burn::tensor::{Bytes, Device, Tensor, TensorData};

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

/// `tensor`, which has no autodiff, on `device`: what it holds now.
pub(crate) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    let from = tensor.device();
    if !is_cubecl(&from) || from == *device {
        return sent(tensor, device);
    }
    let dtype = tensor.dtype();
    Tensor::from_data(read(tensor), (device, dtype))
}
