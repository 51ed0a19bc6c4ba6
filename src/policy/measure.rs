use std::collections::HashMap;

use backburn_base::read_with_timeout;
use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::squares::{Squares, Unread, sums};
use crate::error::FusedError;

/// A hook that measures the global norm of all gradients.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    squares: Mutex<Vec<(String, Squares)>>,
    /// Fails the pass at a gradient that is known not to be finite.
    fails_if_not_finite: bool,
}

/// The global norm of all gradients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Norm {
    pub(crate) value: f64,
    /// Path of the first parameter, by name, whose gradient is not finite.
    pub(crate) not_finite: Option<String>,
    /// The sum of the squares of each gradient by path.
    pub(super) squares: HashMap<String, f64>,
}

impl Norm {
    /// Returns the value; `None` if there was no gradient.
    pub(crate) fn measured(&self) -> Option<f64> {
        (!self.squares.is_empty()).then_some(self.value)
    }
}

impl GradientHook for Measure {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let squares = Squares::of(&gradient);
        let path = parameter.path.to_string();
        if self.fails_if_not_finite && squares.value().is_some_and(|sum| !sum.is_finite()) {
            return GradientFlow::Stop(FusedError::GradientNotFinite { path }.into());
        }
        self.squares.lock().push((path, squares));
        GradientFlow::Continue(gradient)
    }
}

impl Measure {
    /// Creates the hook. If it `fails_if_not_finite`, a gradient that is not finite fails the pass before it is applied, where its
    /// norm is known without waiting for the device.
    pub(super) fn new(fails_if_not_finite: bool) -> Self {
        Self {
            fails_if_not_finite,
            ..Self::default()
        }
    }

    /// Returns the norm of the measured gradients, read once from each device and summed in f64.
    pub(super) fn norm(&self) -> Result<Norm, FusedError> {
        let mut measured = std::mem::take(&mut *self.squares.lock());
        // A fixed order makes the sum reproducible.
        measured.sort_by(|(a, _), (b, _)| a.cmp(b));
        let all: Vec<_> = measured.iter().map(|(_, squares)| squares).collect();
        let squares = sums(&all).map_err(|Unread { index, reason }| {
            let path = measured[index].0.clone();
            FusedError::GradientNotComputed { path, reason }
        })?;
        let first = squares.iter().position(|square| !square.is_finite());
        Ok(Norm {
            value: squares.iter().sum::<f64>().sqrt(),
            not_finite: first.map(|first| measured[first].0.clone()),
            squares: measured
                .into_iter()
                .map(|(path, _)| path)
                .zip(squares)
                .collect(),
        })
    }
}

/// Returns `true` if all elements are finite. Waits for the device.
pub(crate) fn is_finite<const D: usize>(gradient: &Tensor<D>) -> bool {
    let finite = gradient.clone().is_finite().all();
    read_with_timeout(&gradient.device(), || finite.into_scalar::<bool>())
}
