//! Comparison of the two passes of a step, which must compute the same.

use std::collections::HashMap;

use backburn_base::read_with_timeout;
use burn::tensor::{FloatDType, Tensor};
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::measure::Norm;
use super::squares::Squares;
use crate::error::FusedError;

/// Largest difference that is rounding, as a fraction. `flex` adds the parts of a sum of 4,194,304 and more elements in the
/// order in which its threads end.
pub(crate) const ROUNDING: f64 = 1e-5;

/// Returns `true` if two numbers differ by at most this fraction.
fn are_equal(a: f64, b: f64, fraction: f64) -> bool {
    a.to_bits() == b.to_bits() || (a - b).abs() <= fraction * a.abs().min(b.abs())
}

/// The losses of the first pass, by rank.
#[derive(Debug, Default)]
pub(crate) struct Losses(Mutex<HashMap<usize, Vec<f64>>>);

impl Losses {
    /// Keeps the loss of a rank in the first pass. Returns an error if the loss of the second pass differs.
    pub(crate) fn compare(&self, rank: usize, loss: Tensor<1>) -> Result<(), FusedError> {
        let device = loss.device();
        // Sums that differ by rounding may become neighbors in a half type.
        let epsilon = FloatDType::from(loss.dtype()).finfo().epsilon;
        let found: Vec<f64> = read_with_timeout(&device, || loss.into_data().iter().collect());
        let mut losses = self.0.lock();
        let Some(first) = losses.get(&rank) else {
            losses.insert(rank, found);
            return Ok(());
        };
        let mut pairs = first.iter().zip(&found);
        let is_equal = first.len() == found.len()
            && pairs.all(|(a, b)| are_equal(*a, *b, ROUNDING.max(epsilon)));
        match is_equal {
            true => Ok(()),
            false => Err(FusedError::passes_differ("No parameter was updated")),
        }
    }
}

/// A hook that fails the step at a gradient that differs from the first pass.
#[derive(Debug)]
pub(super) struct Compare {
    /// The sums of squares by path, without those that were compared.
    measured: Mutex<HashMap<String, f64>>,
    /// The sum of squares of a gradient that may be nothing but the rounding of others.
    noise: f64,
}

impl Compare {
    pub(super) fn new(norm: Norm) -> Self {
        Self {
            noise: ROUNDING.powi(2) * norm.squares.values().sum::<f64>(),
            measured: Mutex::new(norm.squares),
        }
    }

    /// Returns an error if the second pass had no gradient for a parameter.
    pub(super) fn finish(&self) -> Result<(), FusedError> {
        match self.measured.lock().values().sum::<f64>() <= self.noise {
            true => Ok(()),
            false => Err(FusedError::passes_differ(
                "Parameters without a gradient in the second pass were not updated, all others were",
            )),
        }
    }
}

impl GradientHook for Compare {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let found = Squares::of(&gradient).value();
        let measured = self.measured.lock().remove(parameter.path);
        let is_noise = |a: f64, b: f64| a <= self.noise && b <= self.noise;
        let is_equal = |(a, b)| is_noise(a, b) || are_equal(a, b, ROUNDING);
        match found.zip(measured).is_some_and(is_equal) {
            true => GradientFlow::Continue(gradient),
            false => {
                let error = "Parameters whose gradients had not arrived were not updated";
                GradientFlow::Stop(FusedError::passes_differ(error).into())
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::*;

    #[test]
    fn losses_equal_up_to_rounding_of_their_type() {
        for (dtype, second, is_equal) in [
            (FloatDType::F32, 1.000_001, true),
            (FloatDType::F32, 1.001, false),
            (FloatDType::F16, 1.001, true),
            (FloatDType::F16, 1.002, false),
            (FloatDType::F32, f32::NAN, false),
        ] {
            let losses = Losses::default();
            let compare = |loss: f32| {
                let loss = Tensor::<1>::from_data([loss], &Device::flex());
                losses.compare(0, loss.cast(dtype))
            };
            compare(1.0).unwrap();
            assert_eq!(compare(second).is_ok(), is_equal, "{dtype:?}, {second}");
        }
    }
}
