//! Sums of squares without overflow or underflow.
//!
//! Squares of representable elements can exceed the range of f32. Very large and very small elements are multiplied by a power of
//! two first, which is exact (J. L. Blue, A portable Fortran program to find the Euclidean norm of a vector, 1978).

#[cfg(feature = "cubecl")]
mod kernel;
#[cfg(feature = "cubecl")]
mod on_device;

use burn::tensor::TensorData;

#[cfg(feature = "cubecl")]
pub(crate) use on_device::{check_kernel, sums_of};

/// Lower bound of large elements.
pub(crate) const LARGE: f64 = (1u64 << 40) as f64;
/// Factor of large elements.
pub(crate) const DOWN: f64 = 1.0 / ((1u128 << 100) as f64);
/// Upper bound of small elements.
pub(crate) const SMALL: f64 = 1.0 / LARGE;
/// Factor of small elements.
pub(crate) const UP: f64 = (1u128 << 80) as f64;

/// Returns the total in f64 from triples of the sums of squares of large, ordinary and small elements.
pub(crate) fn total(sums: &TensorData) -> f64 {
    let factors = [DOWN, 1.0, UP].into_iter().cycle();
    let sums = sums.iter::<f64>().zip(factors);
    sums.map(|(sum, factor)| sum / factor.powi(2)).sum()
}
