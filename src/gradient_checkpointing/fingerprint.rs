use std::hash::{DefaultHasher, Hasher};

use burn::tensor::{DType, Slice, Tensor};

use super::activations::{Activations, each};
use crate::policy::ROUNDING;

/// Maximum number of elements of an output that are compared as numbers.
const SAMPLES: usize = 1024;

/// The outputs of a block in short, to detect a recomputation that computes something else.
#[derive(Debug)]
pub(super) struct Fingerprint {
    outputs: Vec<OutputPrint>,
    /// `true` if only a sample of the elements is compared, up to rounding.
    is_sampled: bool,
}

/// One output of a block.
#[derive(Debug)]
enum OutputPrint {
    /// Elements, which are equal up to this fraction of the largest: a sum of many elements can be rounded differently in each run.
    Numbers(Vec<f64>, f64),
    /// The hash of all bits.
    Hash(u64),
}

impl OutputPrint {
    fn of(tensor: &Tensor<1>, is_sampled: bool) -> Self {
        let tensor = tensor.clone().inner();
        let (elements, dtype) = (tensor.shape().num_elements(), tensor.dtype());
        if elements == 0 || !is_sampled && elements != 1 {
            let mut hasher = DefaultHasher::new();
            hasher.write(tensor.into_data().as_bytes());
            return Self::Hash(hasher.finish());
        }
        let rounding = match dtype {
            DType::BF16 if is_sampled => 1.0 / 128.0,
            DType::F16 if is_sampled => 1.0 / 1024.0,
            _ => ROUNDING,
        };
        let mut step = elements.div_ceil(SAMPLES);
        // So that the sample reaches all columns of a matrix.
        while elements > 1 && has_common_divisor(step, elements) {
            step += 1;
        }
        let all = tensor.reshape([elements]);
        let sample = all.slice(Slice::new(0, None, step as isize));
        Self::Numbers(sample.into_data().iter().collect(), rounding)
    }

    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Numbers(a, rounding), Self::Numbers(b, _)) => {
                let sizes = a.iter().map(|number| number.abs());
                let largest = sizes.filter(|size| size.is_finite()).fold(0.0, f64::max);
                let is_equal = |(a, b): (&f64, &f64)| {
                    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= rounding * largest
                };
                a.len() == b.len() && a.iter().zip(b).all(is_equal)
            }
            (Self::Hash(a), Self::Hash(b)) => a == b,
            _ => false,
        }
    }
}

fn has_common_divisor(mut a: usize, mut b: usize) -> bool {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a > 1
}

impl Fingerprint {
    /// Reads `output`. Waits for the device.
    pub(super) fn of<Y: Activations>(output: &Y, is_sampled: bool) -> Self {
        let mut outputs = Vec::new();
        each(output, |tensor| {
            outputs.push(OutputPrint::of(tensor, is_sampled));
        });
        Self {
            outputs,
            is_sampled,
        }
    }

    /// Returns `true` if `output` differs by more than rounding.
    pub(super) fn differs_from<Y: Activations>(&self, output: &Y) -> bool {
        let other = Self::of(output, self.is_sampled);
        let mut pairs = self.outputs.iter().zip(&other.outputs);
        self.outputs.len() != other.outputs.len() || !pairs.all(|(a, b)| a.equals(b))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn fingerprint_differs_by_more_than_rounding() {
        let (long, mut other) = (vec![1.0; 5000], vec![1.0; 5000]);
        other[2500..].fill(2.0);
        for (a, b, differs, differs_in_sample) in [
            (&[1.0][..], &[1.000_000_1][..], false, false),
            (&[1.0], &[1.001], true, true),
            (&[f32::NAN], &[f32::NAN], false, false),
            (&[f32::INFINITY, 1.0], &[f32::INFINITY, 1.1], true, true),
            (&[f32::INFINITY], &[1.0], true, true),
            (&[1.0, 2.0], &[1.0, 2.0], false, false),
            (&[1.0, 2.0], &[1.000_000_1, 2.0], true, false),
            (&[1.0], &[1.0, 1.0], true, true),
            (&[], &[], false, false),
            (&long, &long, false, false),
            (&long, &other, true, true),
        ] {
            let [a, b] = [a, b].map(|numbers| Tensor::<1>::from_data(numbers, &Device::flex()));
            for (is_sampled, differs) in [(false, differs), (true, differs_in_sample)] {
                let print = Fingerprint::of(&a, is_sampled);
                assert_eq!(print.differs_from(&b), differs, "{a}, {b}, {is_sampled}");
            }
        }
    }

    #[test]
    fn sample_reaches_all_columns() {
        for columns in [3, 5, 8, 64] {
            let rows = Tensor::<2>::ones([2048, columns], &Device::flex());
            let print = Fingerprint::of(&rows, true);
            for column in 0..columns {
                let place = [0..2048, column..column + 1];
                let other = rows.clone().slice_fill(place, 2.0);
                assert!(print.differs_from(&other), "{column} of {columns}");
            }
        }
    }
}
