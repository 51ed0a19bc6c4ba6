use burn::tensor::{DType, FloatDType, Tensor};
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};

/// Measures the global norm of the gradients that pass by.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    squares: Mutex<Vec<(String, Tensor<1>)>>,
}

/// The root of the sum of the squares of all gradients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Norm {
    pub(crate) value: f64,
    /// Path of the first parameter, by name, whose gradient is not finite.
    pub(crate) not_finite: Option<String>,
}

impl GradientHook for Measure {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let squares = squares(&gradient);
        let path = parameter.path.to_string();
        self.squares.lock().push((path, squares));
        GradientFlow::Continue(gradient)
    }
}

impl Measure {
    /// The norm of what has passed, read back from the device at once and added up in f64.
    pub(crate) fn norm(&self) -> Norm {
        let mut squares = std::mem::take(&mut *self.squares.lock());
        // In the same order every time, so that the sum is the same.
        squares.sort_by(|(a, _), (b, _)| a.cmp(b));
        let (paths, squares): (Vec<_>, Vec<_>) = squares.into_iter().unzip();
        let squares = read(squares);
        let first = squares.iter().position(|square| !square.is_finite());
        Norm {
            value: squares.iter().sum::<f64>().sqrt(),
            not_finite: first.map(|first| paths[first].clone()),
        }
    }
}

/// The sum of the squares of a gradient.
fn squares<const D: usize>(gradient: &Tensor<D>) -> Tensor<1> {
    widened(gradient).square().sum()
}

/// The gradient to compute statistics of, in f32 for half types: squares would overflow in f16.
pub(super) fn widened<const D: usize>(gradient: &Tensor<D>) -> Tensor<D> {
    match gradient.dtype() {
        DType::F16 | DType::BF16 => gradient.clone().cast(FloatDType::F32),
        _ => gradient.clone(),
    }
}

fn read(scalars: Vec<Tensor<1>>) -> Vec<f64> {
    if scalars.is_empty() {
        return Vec::new();
    }
    let dtype = scalars[0].dtype();
    let same = scalars.iter().all(|scalar| scalar.dtype() == dtype);
    let scalars = scalars.into_iter().map(|scalar| match same {
        true => scalar,
        false => scalar.cast(FloatDType::F32),
    });
    let scalars = Tensor::cat(scalars.collect(), 0).into_data();
    scalars.iter::<f64>().collect()
}

/// Whether all elements are finite; waits for the device.
pub(crate) fn is_finite<const D: usize>(gradient: &Tensor<D>) -> bool {
    gradient.clone().is_finite().all().into_scalar::<bool>()
}
