//! Sums of squares without overflow or underflow.
//!
//! Squares of representable elements can exceed the range of f32, so elements are divided by the largest one, or very large and very
//! small ones are multiplied by a power of two.

use backburn_base::read_with_timeout;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, Transaction};

#[cfg(feature = "cubecl")]
use backburn_base::is_cubecl;

/// The sum of the squares of a tensor's elements.
#[derive(Clone, Debug)]
pub(crate) enum Squares {
    Known(f64),
    /// Still on a device: a [`scaled_sum`].
    #[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
    OnDevice(Box<Tensor<1>>),
}

/// A sum that can't be read: its index, and the error of the device.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) index: usize,
    pub(super) reason: String,
}

/// Lower bound of large elements.
const LARGE: f64 = (1u64 << 40) as f64;
/// Factor of large elements.
const DOWN: f64 = 1.0 / ((1u128 << 100) as f64);
/// Upper bound of small elements.
const SMALL: f64 = 1.0 / LARGE;
/// Factor of small elements.
const UP: f64 = (1u128 << 80) as f64;
/// Upper bound of a sum of squares without a large element.
const NOT_LARGE: f64 = LARGE * LARGE / 4.0;
/// Lower bound of a mean of squares whose largest element is not small.
const NOT_SMALL: f64 = 4.0 * SMALL * SMALL;

impl Squares {
    /// Computes the sum of squares; half types in f32.
    pub(crate) fn of<const D: usize>(elements: &Tensor<D>) -> Self {
        if elements.shape().num_elements() == 0 {
            return Self::Known(0.0);
        }
        #[cfg(feature = "cubecl")]
        if is_cubecl(&elements.device()) {
            let sums = scaled_sum(elements.clone());
            return Self::OnDevice(Box::new(sums));
        }
        let elements = elements.clone();
        Self::Known(read_with_timeout(&elements.device(), || {
            sum_of_squares(elements)
        }))
    }

    /// Returns the sum, if it is known without waiting for a device.
    pub(super) fn value(&self) -> Option<f64> {
        match self {
            Self::Known(sum) => Some(*sum),
            Self::OnDevice(_) => None,
        }
    }
}

/// Elements of a part of a sum. From four times as many, `flex` adds parts in the order in which its threads end.
const PART: usize = 1 << 20;

/// Reads the sum of the squares from the device.
fn sum_of_squares<const D: usize>(elements: Tensor<D>) -> f64 {
    let count = elements.shape().num_elements();
    let elements = elements.reshape([count]);
    let parts = (0..count).step_by(PART);
    parts
        .map(|start| sum_of_part(elements.clone().narrow(0, start, PART.min(count - start))))
        .sum()
}

/// Reads the sum of the squares of a part from the device.
fn sum_of_part(elements: Tensor<1>) -> f64 {
    let elements = widened(&elements);
    // Most gradients need neither a second pass nor a copy.
    let count = elements.shape().num_elements() as f64;
    let sum = elements.clone().square().sum().into_scalar::<f64>();
    if sum < NOT_LARGE && sum > NOT_SMALL * count {
        return sum;
    }
    let largest = elements.clone().abs().max();
    let factor = match largest.into_scalar::<f64>() {
        largest if largest > LARGE => DOWN,
        largest if largest < SMALL => UP,
        _ => return sum,
    };
    let scaled = elements.mul_scalar(factor);
    scaled.square().sum().into_scalar::<f64>() / factor.powi(2)
}

/// Returns the largest magnitude of a non-empty tensor, and the sum of the squares of its elements divided by that, for [`total`].
/// Does not wait for the device.
#[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
fn scaled_sum<const D: usize>(elements: Tensor<D>) -> Tensor<1> {
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
fn total(scaled_sum: &TensorData) -> f64 {
    let numbers: Vec<f64> = scaled_sum.iter().collect();
    match numbers[..] {
        [largest, sum] if largest.is_finite() => sum * largest.powi(2),
        [largest, _] => largest.abs(),
        _ => f64::NAN,
    }
}

/// Returns the sums in f64, read once per device and dtype.
pub(super) fn sums(squares: &[&Squares]) -> Result<Vec<f64>, Unread> {
    let mut sums = vec![0.0; squares.len()];
    let mut left = Vec::new();
    for (index, squares) in squares.iter().enumerate() {
        match squares {
            Squares::Known(sum) => sums[index] = *sum,
            Squares::OnDevice(parts) => left.push((index, &**parts)),
        }
    }
    while let Some((_, first)) = left.first() {
        let kind = kind(first);
        let (here, elsewhere): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|(_, parts)| self::kind(parts) == kind);
        for ((index, _), sum) in here.iter().zip(read(&here)?) {
            sums[*index] = sum;
        }
        left = elsewhere;
    }
    Ok(sums)
}

/// Returns the key of tensors that can be read together.
fn kind(parts: &Tensor<1>) -> (Device, DType) {
    (parts.device(), parts.dtype())
}

/// Returns the sums of one kind.
fn read(sums: &[(usize, &Tensor<1>)]) -> Result<Vec<f64>, Unread> {
    let parts = sums.iter().map(|(_, parts)| (*parts).clone());
    let all = parts.fold(Transaction::default(), Transaction::register);
    let read = match (all.try_execute(), sums) {
        (Ok(read), _) => read,
        (Err(error), [(index, _)]) => {
            let (index, reason) = (*index, error.to_string());
            return Err(Unread { index, reason });
        }
        // Reads one after the other, to find the sum that fails.
        (Err(_), several) => {
            let each = several
                .iter()
                .map(|one| self::read(std::slice::from_ref(one)));
            return each.map(|one| Ok(one?[0])).collect();
        }
    };
    Ok(read.iter().map(total).collect())
}

/// Returns the tensor in f32 for half types: squares would overflow in f16.
pub(super) fn widened<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.clone().cast(FloatDType::F32),
        _ => tensor.clone(),
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Distribution;
    use rayon::ThreadPoolBuilder;

    use super::*;

    #[test]
    fn norm_of_large_tensor_is_same_on_any_number_of_threads() {
        let uniform = Distribution::Uniform(-1.0, 1.0);
        let elements = Tensor::<2>::random([2100, 2100], uniform, &Device::flex());
        let sum = || Squares::of(&elements).value().unwrap();
        let expected = sum();
        assert!((expected / (2100.0 * 2100.0) - 1.0 / 3.0).abs() < 1e-3);
        for threads in [1, 2, 4] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.unwrap();
            for _ in 0..5 {
                assert_eq!(pool.install(sum), expected);
            }
        }
    }

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
