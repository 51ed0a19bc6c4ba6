use std::hash::{DefaultHasher, Hasher};

use super::activations::{Activations, each};
use crate::policy::equal_up_to_rounding;

/// The outputs of a block in short, to detect a recomputation that drew other random numbers.
#[derive(Debug, Default)]
pub(super) struct Fingerprint(Vec<OutputPrint>);

/// One output of a block.
#[derive(Clone, Copy, Debug)]
enum OutputPrint {
    /// The only element of a float tensor: a sum of many elements can be rounded differently in each run.
    Number(f64),
    /// The hash of all bits.
    Hash(u64),
}

impl Fingerprint {
    /// Reads `output`. Waits for the device.
    pub(super) fn of<Y: Activations>(output: &Y) -> Self {
        let mut outputs = Vec::new();
        each(output, |tensor| {
            let data = tensor.clone().inner().into_data();
            outputs.push(match data.num_elements() {
                1 => OutputPrint::Number(data.iter().next().unwrap_or(f64::NAN)),
                _ => {
                    let mut hasher = DefaultHasher::new();
                    hasher.write(data.as_bytes());
                    OutputPrint::Hash(hasher.finish())
                }
            });
        });
        Self(outputs)
    }

    /// Returns `true` if an output differs by more than rounding.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        let is_equal = |pair| match pair {
            (OutputPrint::Number(a), OutputPrint::Number(b)) => equal_up_to_rounding(a, b),
            (OutputPrint::Hash(a), OutputPrint::Hash(b)) => a == b,
            _ => false,
        };
        let mut pairs = self.0.iter().copied().zip(other.0.iter().copied());
        self.0.len() != other.0.len() || !pairs.all(is_equal)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;

    #[test]
    fn fingerprint_of_one_number_ignores_rounding() {
        let of = |numbers: &[f32]| {
            let device = Device::flex();
            Fingerprint::of(&Tensor::<1>::from_data(numbers, &device))
        };
        for (a, b, differs) in [
            (&[1.0][..], &[1.000_000_1][..], false),
            (&[1.0], &[1.001], true),
            (&[f32::NAN], &[f32::NAN], false),
            (&[1.0, 2.0], &[1.0, 2.0], false),
            (&[1.0, 2.0], &[1.000_000_1, 2.0], true),
            (&[1.0], &[1.0, 1.0], true),
        ] {
            assert_eq!(of(a).differs_from(&of(b)), differs, "{a:?}, {b:?}");
        }
    }
}
