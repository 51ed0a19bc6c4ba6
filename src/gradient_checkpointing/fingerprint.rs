use std::hash::{DefaultHasher, Hasher};

use burn::tensor::{DType, TensorData};

use super::activations::{Activations, each};
use crate::policy::ROUNDING;

/// Maximum number of elements of an output that are compared as numbers.
const SAMPLES: usize = 1024;

/// The outputs of a block in short, to detect a recomputation that computes something else.
#[derive(Debug)]
pub(super) struct Fingerprint {
    outputs: Vec<OutputPrint>,
    /// `true` if a sample of the elements is compared: a run that draws no random numbers changes all of them, or none.
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
    fn of(data: &TensorData, is_sampled: bool) -> Self {
        let elements = data.num_elements();
        if !is_sampled && elements != 1 {
            let mut hasher = DefaultHasher::new();
            hasher.write(data.as_bytes());
            return Self::Hash(hasher.finish());
        }
        let (dtype, bytes) = (data.dtype(), data.as_bytes());
        // Odd, so that the sample does not follow the columns of a matrix.
        let step = elements.div_ceil(SAMPLES) | 1;
        let sample = bytes.chunks_exact(dtype.size()).step_by(step);
        let sample = sample.flatten().copied().collect::<Vec<_>>();
        let shape = [sample.len() / dtype.size()];
        let numbers = TensorData::from_bytes_vec(sample, shape, dtype)
            .iter()
            .collect();
        let rounding = match dtype {
            DType::BF16 => 1.0 / 128.0,
            DType::F16 => 1.0 / 1024.0,
            _ => ROUNDING,
        };
        Self::Numbers(numbers, rounding)
    }

    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Numbers(a, rounding), Self::Numbers(b, _)) => {
                let sizes = a.iter().map(|number| number.abs());
                let largest = sizes.filter(|size| size.is_finite()).fold(0.0, f64::max);
                let is_equal = |(a, b): (&f64, &f64)| {
                    a.to_bits() == b.to_bits() || (a - b).abs() <= rounding * largest
                };
                a.len() == b.len() && a.iter().zip(b).all(is_equal)
            }
            (Self::Hash(a), Self::Hash(b)) => a == b,
            _ => false,
        }
    }
}

impl Fingerprint {
    /// Reads `output`. Waits for the device.
    pub(super) fn of<Y: Activations>(output: &Y, is_sampled: bool) -> Self {
        let mut outputs = Vec::new();
        each(output, |tensor| {
            let data = tensor.clone().inner().into_data();
            outputs.push(OutputPrint::of(&data, is_sampled));
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
    use burn::tensor::{Device, Tensor};

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
}
