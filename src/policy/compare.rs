use std::collections::HashMap;

use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::norm::Squares;
use crate::error::FusedError;

/// Stops the step at a gradient that is not, bit for bit, the one that was measured in the pass before: other
/// random numbers were drawn.
#[derive(Debug)]
pub(super) struct Compare {
    /// The sums of squares by path.
    pub(super) measured: HashMap<String, f64>,
    /// For devices that would have to be waited for: the first gradient is measured again, to be compared when something else is
    /// waited for.
    pub(super) later: Option<Mutex<Option<(Squares, Squares)>>>,
}

impl Compare {
    /// Adds the first gradient to what is left to be compared.
    pub(super) fn leave(&self, unconfirmed: &mut Unconfirmed) {
        let first = self.later.as_ref().and_then(|first| first.lock().clone());
        if let Some((first, second)) = first {
            unconfirmed.push(first, second);
        }
    }

    fn agrees<const D: usize>(&self, path: &str, gradient: &Tensor<D>) -> bool {
        let measured = || self.measured.get(path).copied();
        let Some(first) = &self.later else {
            let found = Squares::of(gradient).value().map(f64::to_bits);
            return found.is_some() && found == measured().map(f64::to_bits);
        };
        let mut first = first.lock();
        if first.is_none() {
            let second = Squares::of(gradient);
            *first = measured().map(|first| (Squares::known(first, &second), second));
        }
        first.is_some()
    }
}

impl GradientHook for Compare {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        match self.agrees(parameter.path, &gradient) {
            true => GradientFlow::Continue(gradient),
            false => GradientFlow::Stop(FusedError::other_passes()),
        }
    }
}

/// What two passes of a step have measured, the first and the second, and nobody has compared yet: the next step
/// does, when it reads the norm of its gradients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unconfirmed(Vec<(Squares, Squares)>);

impl Unconfirmed {
    pub(crate) fn push(&mut self, first: Squares, second: Squares) {
        self.0.push((first, second));
    }

    /// All that has to be read, pair by pair.
    pub(super) fn squares(&self) -> impl Iterator<Item = &Squares> {
        self.0.iter().flat_map(|(first, second)| [first, second])
    }

    /// Whether both passes agree, as far as kernels do; `sums` is what was read.
    pub(super) fn agree(&self, sums: &[f64]) -> bool {
        self.0
            .iter()
            .zip(sums.chunks_exact(2))
            .all(|((_, squares), sums)| {
                let (first, second) = (sums[0], sums[1]);
                let equal = first.to_bits() == second.to_bits();
                equal || (first - second).abs() <= squares.tolerance * first.abs()
            })
    }
}
