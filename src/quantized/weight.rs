use backburn_base::{copy_to_device, is_cpu_backend};
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_std::{QuantizedBytes, Shape};

use super::dequantized::dequantized;
use super::format::BaseFormat;
use super::values;

/// A weight composed of a frozen quantized base and the factors of an adapter: `base + scale * (a @ b)`.
#[derive(Clone, Debug)]
pub(super) struct ComposedWeight {
    /// The quantized rows, without autodiff.
    pub(super) base: Tensor<2>,
    pub(super) scale: f64,
}

impl ComposedWeight {
    /// Returns the weight, on the device and in the type of the factors. Nothing here has autodiff.
    pub(super) fn composed(&self, a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
        let product = a.matmul(b);
        let device = product.device();
        let base = copy_to_device(self.base.clone(), &device);
        let format = BaseFormat::of_row(base.dims()[1]).expect("rows have the length of a format");
        let dtype = product.dtype();
        let is_on_host = is_cpu_backend(&device);
        if is_on_host && dtype == DType::F32 {
            // In place.
            let mut data = product.into_data();
            let values = data.as_mut_slice::<f32>().expect("it is in f32");
            values::add(&rows_of(base), format, self.scale as f32, values);
            return Tensor::from_data(data, (&device, dtype));
        }
        let shape = product.dims();
        let elements = shape.iter().product();
        let weights = if is_on_host {
            let mut values = vec![0.0; elements];
            values::add(&rows_of(base), format, 1.0, &mut values);
            Tensor::from_data(
                TensorData::new(values, shape).convert_dtype(dtype),
                (&device, dtype),
            )
        } else {
            let weights = dequantized(base, format).narrow(0, 0, elements);
            weights.reshape(shape).cast(FloatDType::from(dtype))
        };
        weights + product.mul_scalar(self.scale)
    }

    /// Returns the gradients of the factors from that of the weight, as Burn computes them.
    pub(super) fn gradients(
        &self,
        weight: Tensor<2>,
        a: Tensor<2>,
        b: Tensor<2>,
    ) -> [Tensor<2>; 2] {
        let delta = weight.mul_scalar(self.scale);
        [
            delta.clone().matmul(b.transpose()),
            a.transpose().matmul(delta),
        ]
    }
}

/// Returns the quantized rows of `value`, which is finite.
pub(super) fn quantized(value: Tensor<2>, format: BaseFormat) -> Tensor<2> {
    let device = value.device();
    let data = value.into_data().convert_dtype(DType::F32);
    let values = data.as_slice::<f32>().expect("it is in f32");
    let store = device.settings().quantization.scheme.store;
    stored(values::quantized(values, format), format, store, &device)
}

/// Returns `true` if `value` is finite in f32, the type in which it is quantized.
pub(super) fn is_finite<const D: usize>(value: &Tensor<D>) -> bool {
    let value = value.clone().inner();
    let value = match value.dtype() {
        DType::F64 => value.cast(FloatDType::F32),
        _ => value,
    };
    value.is_finite().all().into_scalar::<bool>()
}

/// Returns `rows` as a tensor of bytes in the layout `store`: a quantized tensor with a scale of one.
fn stored(rows: Vec<u8>, format: BaseFormat, store: QuantStore, device: &Device) -> Tensor<2> {
    let scheme = QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .with_store(store)
        .per_tensor(ScaleDtype::F32);
    let shape = Shape::from(vec![rows.len() / format.row(), format.row()]);
    let bytes: Vec<i8> = bytemuck::allocation::cast_vec(rows);
    let data = TensorData::quantized(bytes, shape, scheme, &[1.0], None);
    Tensor::from_data(data, device)
}

/// Returns `rows` in the layout `store`: rows of a file may come from another kind of device.
pub(super) fn in_layout(rows: Tensor<2>, store: Option<QuantStore>) -> Tensor<2> {
    match (rows.dtype(), store, BaseFormat::of_row(rows.dims()[1])) {
        (DType::QFloat(scheme), Some(store), Some(format)) if scheme.store != store => {
            let device = rows.device();
            stored(rows_of(rows), format, store, &device)
        }
        _ => rows,
    }
}

/// Returns the bytes of a tensor of rows. Burn's `fork` dequantizes them.
fn rows_of(rows: Tensor<2>) -> Vec<u8> {
    let data = rows.into_data();
    let DType::QFloat(scheme) = data.dtype() else {
        return data.iter::<f32>().map(|byte| byte as i8 as u8).collect();
    };
    let shape = data.shape().clone();
    let bytes = QuantizedBytes {
        shape,
        bytes: data.into_bytes(),
        scheme,
    };
    bytemuck::allocation::cast_vec(bytes.into_vec_i8().0)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    #[test]
    fn tensor_operations_dequantize_as_processor() {
        let device = Device::flex();
        for (format, magnitude) in [
            (BaseFormat::Bits8, 0.02),
            (BaseFormat::Bits4, 0.02),
            (BaseFormat::Bits4, 3e-12),
        ] {
            let normal = Distribution::Normal(0.0, magnitude);
            let value = Tensor::<2>::random([24, 17], normal, &device);
            let rows = quantized(value, format);
            let mut expected = vec![0.0; 24 * 17];
            values::add(&rows_of(rows.clone()), format, 1.0, &mut expected);
            let found = dequantized(rows, format).narrow(0, 0, 24 * 17);
            found
                .into_data()
                .assert_eq(&TensorData::from(&*expected), true);
        }
    }
}
