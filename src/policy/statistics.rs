use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{FloatDType, Tensor};
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::squares::{Squares, sums, widened};

/// A hook that keeps statistics of the last gradient of every parameter.
///
/// Clones share their statistics: pass one clone to `with_hook` and read from the other. On CubeCL devices the
/// numbers stay on the device until they are read; on others each call of the hook waits for the norm.
///
/// ```
/// use backburn::{FusedOptimizer, GradientStatistics};
/// use burn::module::ParamGroup;
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Tensor}};
/// # let device = Device::flex().autodiff();
/// # let model = LinearConfig::new(2, 1).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
///
/// let statistics = GradientStatistics::new();
/// let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())?
///     .with_hook(ParamGroup::all(), statistics.clone());
/// fused.step(0.1, |model| model.forward(x).mean())?;
/// for (path, gradient) in statistics.take() {
///     println!("{path}: norm {}, largest {}", gradient.norm, gradient.largest);
/// }
/// # Ok::<(), backburn::FusedError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GradientStatistics {
    /// Still on the device.
    found: Arc<Mutex<BTreeMap<String, Found>>>,
}

/// Statistics that are still on the device.
#[derive(Debug)]
struct Found {
    squares: Squares,
    /// Mean, largest, fraction of zeros.
    numbers: Tensor<1>,
}

/// Statistics of the gradient of one parameter, from [`GradientStatistics`]; all are zero if it has no elements.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GradientStatistic {
    /// The L2 norm of the gradient.
    pub norm: f64,
    /// The mean of all elements.
    pub mean: f64,
    /// The largest absolute value.
    pub largest: f64,
    /// The fraction of the elements that are zero.
    pub zeros: f64,
}

impl GradientStatistics {
    /// Creates a hook without statistics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the statistics since the last call, by path, and drops them. Waits for the device.
    ///
    /// # Panics
    ///
    /// Panics if a device can't be read.
    pub fn take(&self) -> BTreeMap<String, GradientStatistic> {
        let found = std::mem::take(&mut *self.found.lock());
        let read = |found: Found| {
            let numbers: Vec<f64> = found.numbers.into_data().iter::<f64>().collect();
            let squares = sums(&[&found.squares]).unwrap_or_else(|unread| {
                panic!("the norm of a gradient can't be read: {}", unread.reason)
            });
            GradientStatistic {
                norm: squares[0].sqrt(),
                mean: numbers[0],
                largest: numbers[1],
                zeros: numbers[2],
            }
        };
        let found = found.into_iter();
        found.map(|(path, found)| (path, read(found))).collect()
    }
}

impl GradientHook for GradientStatistics {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let found = Found {
            squares: Squares::of(&gradient),
            numbers: numbers(&gradient),
        };
        self.found.lock().insert(parameter.path.to_string(), found);
        GradientFlow::Continue(gradient)
    }
}

/// Returns mean, largest magnitude and fraction of zeros; zeros for an empty tensor.
fn numbers<const D: usize>(gradient: &Tensor<D>) -> Tensor<1> {
    let wide = widened(gradient);
    let dtype = FloatDType::from(wide.dtype());
    if wide.shape().num_elements() == 0 {
        return Tensor::zeros([3], (&wide.device(), wide.dtype()));
    }
    let zeros = wide.clone().equal_scalar(0.0).float().cast(dtype).mean();
    Tensor::cat(vec![wide.clone().mean(), wide.abs().max(), zeros], 0)
}
