//! Sums of squares without overflow or underflow.
//!
//! Squares of representable elements can exceed the range of f32, so elements are divided by the largest one, or very large and very
//! small ones are multiplied by a power of two.

use burn::tensor::{DType, FloatDType, Tensor, TensorData};

/// Lower bound of large elements.
pub(crate) const LARGE: f64 = (1u64 << 40) as f64;
/// Factor of large elements.
pub(crate) const DOWN: f64 = 1.0 / ((1u128 << 100) as f64);
/// Upper bound of small elements.
pub(crate) const SMALL: f64 = 1.0 / LARGE;
/// Factor of small elements.
pub(crate) const UP: f64 = (1u128 << 80) as f64;

/// Returns the largest magnitude of a non-empty tensor, and the sum of the squares of its elements divided by that, for [`total`].
/// Does not wait for the device.
#[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
pub(crate) fn scaled_sum<const D: usize>(elements: Tensor<D>) -> Tensor<1> {
    let elements = match elements.dtype() {
        DType::F64 => elements,
        _ => elements.cast(FloatDType::F32),
    };
    let largest = elements.clone().abs().max();
    // Zeros are not divided by zero.
    let divisor = largest.clone().clamp_min(f32::MIN_POSITIVE);
    let sum = (elements / divisor.reshape([1; D])).square().sum();
    Tensor::cat(vec![largest, sum], 0)
}

/// Returns the sum of squares in f64 from a [`scaled_sum`].
pub(crate) fn total(scaled_sum: &TensorData) -> f64 {
    let numbers: Vec<f64> = scaled_sum.iter().collect();
    match numbers[..] {
        [largest, sum] if largest.is_finite() => sum * largest.powi(2),
        [largest, _] => largest.abs(),
        _ => f64::NAN,
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn scaled_sum_covers_range_of_f32() {
        for magnitude in [0.0, 1e-38, 1e-30, 1.0, 1e30, 8e37] {
            let mut elements = [0.0_f32; 70];
            (elements[0], elements[69]) = (3.0 * magnitude, -4.0 * magnitude);
            let elements = Tensor::<1>::from_data(elements, &Device::flex());
            let found = total(&scaled_sum(elements.reshape([7, 10])).into_data());
            let expected = 25.0 * f64::from(magnitude).powi(2);
            assert!(
                (found - expected).abs() <= 1e-6 * expected,
                "{found} {expected}"
            );
        }
        for element in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let elements = Tensor::<1>::from_data([1.0, element], &Device::flex());
            assert!(!total(&scaled_sum(elements).into_data()).is_finite());
        }
    }
}
