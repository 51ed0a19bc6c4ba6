use burn::tensor::kind::Basic;
use burn::tensor::{Bytes, Device, Tensor, TensorData};

use super::{is_cubecl, is_remote};

/// What `tensor`, which has no autodiff, holds now.
///
/// CubeCL reads when the data are first looked at, and shows what has been written in place by then; meanwhile the
/// memory of the device stays taken. So it is looked at, and copied, at once.
pub(crate) fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> TensorData {
    // With a second handle nobody writes in place.
    let _kept = tensor.clone();
    let data = tensor.into_data();
    let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
    TensorData::from_bytes(bytes, data.shape(), data.dtype())
}

/// `tensor`, which has no autodiff, on `device`: what it holds now.
pub(crate) fn moved<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    let from = tensor.device();
    let through_here = is_cubecl(&from) || between_servers(&from, device);
    if !through_here || from == *device {
        return tensor.to_device(device);
    }
    let dtype = tensor.dtype();
    Tensor::from_data(read(tensor), (device, dtype))
}

/// Whether Burn would have one server ask another for a tensor.
///
/// What we move goes through this process instead: a server waits for ever if the other is gone, or has the tensor ready just
/// when it is asked for it (`ExternalCommService` of Burn 0.22.1 looks, and listens for news only then). And it need not
/// know under what address the other is reached from there.
pub(crate) fn between_servers(from: &Device, to: &Device) -> bool {
    is_remote(from) && is_remote(to) && from.clone().inner() != to.clone().inner()
}
