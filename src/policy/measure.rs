use std::collections::HashMap;

use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::norm::{Squares, Unread, sums};
use crate::device::answered;
use crate::error::FusedError;

/// Measures the global norm of the gradients that pass by.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    squares: Mutex<Vec<(String, Squares)>>,
    /// Stops the pass at a gradient that is known not to be finite.
    stops: bool,
}

/// The root of the sum of the squares of all gradients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Norm {
    pub(crate) value: f64,
    /// Path of the first parameter, by name, whose gradient is not finite.
    pub(crate) not_finite: Option<String>,
    /// The sum of the squares of each gradient by path.
    pub(super) squares: HashMap<String, f64>,
}

impl GradientHook for Measure {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let squares = Squares::of(&gradient);
        let path = parameter.path.to_string();
        if self.stops && squares.value().is_some_and(|sum| !sum.is_finite()) {
            return GradientFlow::Stop(FusedError::GradientNotFinite { path });
        }
        self.squares.lock().push((path, squares));
        GradientFlow::Continue(gradient)
    }
}

impl Measure {
    /// If it `stops`, a gradient that is not finite ends the pass before it is used, where its norm needs no wait for the
    /// device.
    pub(super) fn new(stops: bool) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    /// The norm of what has passed, read back from each device at once and added up in f64.
    pub(super) fn norm(&self) -> Result<Norm, FusedError> {
        let mut measured = std::mem::take(&mut *self.squares.lock());
        // In the same order every time, so that the sum is the same.
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

/// Whether all elements are finite; waits for the device.
pub(crate) fn is_finite<const D: usize>(gradient: &Tensor<D>) -> bool {
    let finite = gradient.clone().is_finite().all();
    answered(&gradient.device(), || finite.into_scalar::<bool>())
}
