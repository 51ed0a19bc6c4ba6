use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, FloatDType, Tensor};
use parking_lot::Mutex;

use super::hook::{GradientFlow, GradientHook, HookedParameter};

/// A hook that keeps statistics of the last gradient of every parameter.
///
/// Clones share what they see: one goes into the optimizer, the other is read. The numbers stay on
/// the device until then.
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
/// let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
///     .with_hook(ParamGroup::all(), statistics.clone());
/// fused.step(0.1, |model| model.forward(x).mean());
/// for (path, gradient) in statistics.take() {
///     println!("{path}: norm {}, largest {}", gradient.norm, gradient.largest);
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct GradientStatistics {
    found: Arc<Mutex<BTreeMap<String, Found>>>,
}

/// Statistics of the gradient of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GradientStatistic {
    /// The root of the sum of the squares of all elements.
    pub norm: f64,
    /// The mean of all elements.
    pub mean: f64,
    /// The largest absolute value.
    pub largest: f64,
    /// The fraction of the elements that are zero.
    pub zeros: f64,
}

/// Still on the device: sum of squares, mean, largest, fraction of zeros.
#[derive(Clone, Debug)]
struct Found(Tensor<1>);

impl GradientStatistics {
    /// A hook that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The statistics by path of what was seen since the last call; waits for the device.
    pub fn take(&self) -> BTreeMap<String, GradientStatistic> {
        let found = std::mem::take(&mut *self.found.lock());
        let read = |Found(numbers): Found| {
            let numbers: Vec<f64> = numbers.into_data().iter::<f64>().collect();
            GradientStatistic {
                norm: numbers[0].sqrt(),
                mean: numbers[1],
                largest: numbers[2],
                zeros: numbers[3],
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
        let wide = match gradient.dtype() {
            DType::F16 | DType::BF16 => gradient.clone().cast(FloatDType::F32),
            _ => gradient.clone(),
        };
        let zeros = wide.clone().equal_scalar(0.0).float().mean();
        let numbers = vec![
            wide.clone().square().sum(),
            wide.clone().mean(),
            wide.abs().max(),
            zeros,
        ];
        let dtype = numbers[0].dtype();
        let numbers = numbers.into_iter().map(|number| match dtype {
            DType::F64 => number.cast(FloatDType::F64),
            _ => number.cast(FloatDType::F32),
        });
        let found = Found(Tensor::cat(numbers.collect(), 0));
        self.found.lock().insert(parameter.path.to_string(), found);
        GradientFlow::Continue(gradient)
    }
}
