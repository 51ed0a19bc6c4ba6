use burn::tensor::{Bytes, Device, Tensor, TensorData};

use super::{is_cubecl, is_remote};

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
///
/// From one server to another it goes through this process: a server that waits for a tensor of another waits for ever if
/// that is gone, and need not know under what address the other is reached from there.
pub(crate) fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    let from = tensor.device();
    let through_here = is_cubecl(&from) || is_remote(&from) && is_remote(device);
    if !through_here || from == *device {
        return tensor.to_device(device);
    }
    let dtype = tensor.dtype();
    Tensor::from_data(read(tensor), (device, dtype))
}
