use burn::backend::Dispatch;
use burn::backend::ops::{FloatTensorOps, QTensorOps};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};

use crate::{is_cubecl, is_remote, to_device};

/// Reads the current value of `tensor`, which has no autodiff.
///
/// CubeCL reads lazily: the result would contain later writes in place, and the device memory would stay allocated. So
/// the data are copied immediately.
pub fn read<const D: usize>(tensor: Tensor<D>) -> TensorData {
    // A second handle prevents writes in place.
    let _kept = tensor.clone();
    let data = tensor.into_data();
    let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
    TensorData::from_bytes(bytes, data.shape(), data.dtype())
}

/// Loads `tensor`, which has no autodiff, into memory: Burn reads data of a file lazily.
pub fn in_memory<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let (elements, dtype) = (tensor.shape().num_elements(), tensor.dtype());
    let data = match dtype {
        DType::QFloat(_) => tensor.clone().into_data(),
        // A tensor without elements is never read, so it would keep its file open.
        _ if elements == 0 => return Tensor::zeros(tensor.shape(), (&tensor.device(), dtype)),
        _ => {
            let row: Tensor<1> = tensor.clone().reshape([elements]);
            row.slice(0..1).into_data()
        }
    };
    data.as_bytes();
    tensor
}

/// Copies the current value of `tensor`, which has no autodiff, to `device`. The number of dimensions in its type doesn't matter.
pub fn copy_to_device<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    let from = tensor.device();
    // Burn transfers quantized values in a buffer of twice their length.
    let is_quantized = matches!(tensor.dtype(), DType::QFloat(_));
    let is_long = is_quantized && !is_remote(&from) && !is_remote(device);
    if from == *device || !(is_cubecl(&from) || is_long) {
        return to_device(tensor, device);
    }
    of_data(read(tensor), device)
}

/// Creates a float tensor of `data`, in the type of the data. `Tensor::from_data` would check the number of dimensions of the type.
pub fn of_data<const D: usize>(data: TensorData, device: &Device) -> Tensor<D> {
    let device = device.as_dispatch();
    Tensor::from_dispatch(match data.dtype() {
        DType::QFloat(_) => Dispatch::q_from_data(data, device),
        _ => Dispatch::float_from_data(data, device),
    })
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn of_data_keeps_shape_and_type_for_any_dims_in_type() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let data = TensorData::from([[1.0, 2.0], [3.0, 4.0]]).convert_dtype(dtype);
            let tensor = of_data::<1>(data.clone(), &Device::flex());
            tensor.into_data().assert_eq(&data, true);
        }
    }
}
