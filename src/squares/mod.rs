//! Sums of squares in which neither the largest nor the smallest floats are lost.
//!
//! Squares leave the range of f32 long before the elements do. So elements are multiplied by a power of two first, which changes no
//! digit, where they are very large or very small (J. L. Blue, A portable Fortran program to find the Euclidean norm of a
//! vector, 1978).

#[cfg(feature = "cubecl")]
mod kernel;
#[cfg(feature = "cubecl")]
mod on_device;

use burn::tensor::TensorData;

#[cfg(feature = "cubecl")]
pub(crate) use on_device::{check_kernel, sums_of};

/// Elements beyond this are made smaller.
pub(crate) const LARGE: f64 = (1u64 << 40) as f64;
/// By this.
pub(crate) const DOWN: f64 = 1.0 / ((1u128 << 100) as f64);
/// And those below this larger,
pub(crate) const SMALL: f64 = 1.0 / LARGE;
/// by this.
pub(crate) const UP: f64 = (1u128 << 80) as f64;

/// The sum, in f64, from those of the squares of large elements, ordinary and small ones, one after the other, as often as there are.
pub(crate) fn total(sums: &TensorData) -> f64 {
    let factors = [DOWN, 1.0, UP].into_iter().cycle();
    let sums = sums.iter::<f64>().zip(factors);
    sums.map(|(sum, factor)| sum / factor.powi(2)).sum()
}
