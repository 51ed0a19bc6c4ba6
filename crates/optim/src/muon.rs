use burn::config::Config;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdjustLrFn, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::call;
use super::element_wise::{ElementState, ElementWise};
use super::element_wise_optimizer::ElementWiseOptimizer;
use super::format::{Formats, StateFormat, WeightFormat};
use super::kernel;
use super::rule::{Number, Rule, Step, UpdateRule};
use super::sgd::{Momentum, VELOCITY};
use super::state::ElementWiseState;
use backburn_base::{AnyTensor, is_flex};

/// Configuration of [`Muon`]: the fields and defaults of Burn's [`MuonConfig`](burn::optim::MuonConfig).
///
/// It is for a parameter group of matrices; [`MuonWithAdamWConfig`](super::MuonWithAdamWConfig) is for a whole model.
#[derive(Config, Debug)]
pub struct MuonConfig {
    /// Decoupled weight decay, scaled by the learning rate before its adjustment.
    weight_decay: Option<WeightDecayConfig>,
    /// Momentum, with dampening and Nesterov's variant.
    #[config(default = "MomentumConfig { momentum: 0.95, dampening: 0.0, nesterov: true }")]
    momentum: MomentumConfig,
    /// Coefficients of the Newton-Schulz iteration.
    #[config(default = "(3.4445, -4.775, 2.0315)")]
    ns_coefficients: (f32, f32, f32),
    /// Lower bound of the norm that divides a matrix, for numerical stability.
    #[config(default = 1e-7)]
    epsilon: f32,
    /// Steps of the Newton-Schulz iteration.
    #[config(default = 5)]
    ns_steps: usize,
    /// Adjustment of the learning rate to the shape of a matrix.
    #[config(default = "AdjustLrFn::Original")]
    adjust_lr_fn: AdjustLrFn,
    /// Format of the momentum. The iteration enlarges small singular values, and with them the rounding of a low-bit momentum. It
    /// needs gradients of about full rank, from more tokens in a step than the shorter side of the matrix: after ten steps with
    /// gradients of rank 16 in a matrix of 256 x 256, 70 % of the energy of an update is rounding in 8 bits, and 93 % in 4.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// Format of weights in bf16, which sets their extra precision.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
}

impl MuonConfig {
    /// Returns the bare optimizer, for a parameter group of matrices.
    pub fn build(&self) -> Muon {
        let momentum = ElementWiseOptimizer::new(Direction(self.momentum.clone()));
        Muon {
            momentum: momentum.with_state_format(self.state_format),
            config: self.clone(),
        }
    }

    /// Returns the optimizer of a module that has only matrices.
    pub fn init(&self) -> ModuleOptimizer {
        self.build().into()
    }

    /// Returns approximately the nearest matrix with orthonormal rows or columns (Newton-Schulz iteration of `a x + b x^3 + c x^5`). Runs
    /// the operations of Burn's `Muon` in their order, in two buffers of the size of `matrix` and three squares of its shorter side.
    fn orthogonalized(&self, matrix: Tensor<2>) -> Tensor<2> {
        if matrix.shape().num_elements() == 0 {
            return matrix;
        }
        let (a, b, c) = self.ns_coefficients;
        let [rows, columns] = matrix.dims();
        let is_tall = rows > columns;
        let wide = if is_tall { matrix.transpose() } else { matrix };
        let norm = sum_in_order(wide.clone().powf_scalar(2.0)).sqrt();
        let mut x = wide.div(norm.clamp_min(self.epsilon).unsqueeze());
        for _ in 0..self.ns_steps {
            let square = x.clone().matmul(x.clone().transpose());
            let fourth = square.clone().matmul(square.clone()).mul_scalar(c);
            let factor = square.mul_scalar(b).add(fourth);
            let rest = factor.matmul(x.clone());
            x = x.mul_scalar(a).add(rest);
        }
        if is_tall { x.transpose() } else { x }
    }
}

/// Elements from which `flex` adds parts of a tensor in f32 in the order in which its threads end.
const PARALLEL: usize = 1 << 22;

/// Elements of a part of a sum.
const PART: usize = 1 << 20;

/// Returns the sum. Parts are so small that `flex` adds the elements of each in order.
fn sum_in_order(matrix: Tensor<2>) -> Tensor<1> {
    let [rows, columns] = matrix.dims();
    let is_added_in_parallel = is_flex(&matrix.device()) && matrix.dtype() == DType::F32;
    if rows * columns < PARALLEL || !is_added_in_parallel {
        return matrix.sum();
    }
    let (height, width) = match columns < PARALLEL {
        true => ((PART / columns).max(1), columns),
        false => (1, PART),
    };
    let starts = |length: usize, step: usize| (0..length).step_by(step);
    let parts = starts(rows, height).flat_map(|row| {
        let rows = matrix.clone().narrow(0, row, height.min(rows - row));
        starts(columns, width).map(move |column| {
            let width = width.min(columns - column);
            rows.clone().narrow(1, column, width).sum()
        })
    });
    Tensor::cat(parts.collect(), 0).sum()
}

/// The Muon optimizer, which updates a matrix by its orthogonalized momentum.
///
/// Computes what Burn's [`Muon`](burn::optim::Muon) does ([Jordan et al.,
/// 2024](https://kellerjordan.github.io/posts/muon/)). The rows are the first dimension of a weight. Momentum and
/// weight are each updated in a single pass. Between the two, the step allocates two buffers of the size of the matrix
/// and three of the square of its shorter side. With formats, and for weights in f16, the iteration runs in f32.
///
/// # Parameters
///
/// Muon updates only matrices, as Burn's Muon does. `backburn` refuses any other parameter by name before
/// training starts (`FusedError::UnsupportedParameter`): vectors, convolutions, and stacks of experts in one tensor. In
/// a stock loop the step panics.
#[derive(Clone, Debug)]
pub struct Muon {
    config: MuonConfig,
    momentum: ElementWiseOptimizer<Direction>,
}

/// A rule that moves its input in the direction of the momentum.
#[derive(Clone, Debug)]
struct Direction(MomentumConfig);

impl ElementWise for Direction {
    const STATES: &'static [ElementState] = &[VELOCITY];
    const TIME: Option<&'static str> = None;

    fn rule(&self, step: Step) -> Rule {
        Rule::built_in::<1>(Momentum::new(step, &self.0))
    }
}

/// State of [`Muon`]: the momentum, and the residual of the weight if there is one, with Burn's names.
#[derive(Clone, Debug)]
pub struct MuonState<const D: usize>(ElementWiseState<Direction, D>);

impl<const D: usize> MuonState<D> {
    /// Returns the momentum in full precision; `None` before the first step.
    pub fn momentum(&self) -> Option<Tensor<D>> {
        self.0.get(VELOCITY.name)
    }
}

impl Muon {
    /// Returns the factor of the learning rate for a matrix of this shape.
    fn adjustment([rows, columns]: [usize; 2], function: AdjustLrFn) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match function {
            AdjustLrFn::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLrFn::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// A rule that applies an update computed elsewhere, after a decoupled weight decay.
#[derive(Clone, Debug)]
struct Decayed {
    /// Factor of the parameter.
    decay: f64,
    learning_rate: f64,
}

impl UpdateRule<0> for Decayed {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, update: N, []: [N; 0]) -> (N, [N; 0]) {
        let parameter = parameter * N::of(self.decay) - update * N::of(self.learning_rate);
        (parameter, [])
    }
}

/// Returns an error if a parameter with this number of dimensions is not a matrix.
fn check_matrix<const D: usize>() -> Result<(), String> {
    if D == 2 {
        return Ok(());
    }
    Err(format!(
        "`Muon` updates only matrices, but this parameter has {D} dimensions: use another optimizer for its parameter group, as \
         `MuonWithAdamWConfig` does"
    ))
}

impl Optimizer for Muon {
    type State<const D: usize> = MuonState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<MuonState<D>>,
    ) -> (Tensor<D>, Option<MuonState<D>>) {
        let formats = Formats {
            weight: self.config.weight_format,
            ..self.momentum.formats
        };
        let inner = state.as_ref().map(|state| &state.0);
        let states = inner.map_or(&[][..], |state| &state.states);
        let residual = inner.and_then(|state| state.residual.as_ref());
        let resolved = check_matrix::<D>()
            .and_then(|()| formats.resolve(&parameter, &gradient, states, residual));
        let Ok(formats) = resolved.map_err(call::refuse) else {
            return (parameter, state);
        };
        let mut state = state.map_or_else(ElementWiseState::none, |state| state.0);
        let (time, residual) = (state.time + 1, state.residual.take());
        let gradient = match formats.is_plain {
            true => gradient,
            false => gradient.cast(FloatDType::F32),
        };
        // The direction of the momentum. The reports to the caller concern the weight, which is not written yet. So a
        // tensor of the same shape replaces the parameter here.
        let any = gradient.clone();
        let momentum = || {
            let (direction, state) = self.momentum.step(1.0, any, gradient, Some(state));
            // The memory layout determines the last bits of a product.
            let matrix = AnyTensor::from(direction).of_dims::<2>();
            let orthogonalized = match matrix.dtype() {
                // The squares of the elements exceed the range of f16.
                DType::F16 => {
                    let wide = self.config.orthogonalized(matrix.cast(FloatDType::F32));
                    wide.cast(FloatDType::F16)
                }
                _ => self.config.orthogonalized(matrix),
            };
            (AnyTensor::from(orthogonalized).of_dims(), state)
        };
        let (direction, state) = call::without_caller(momentum);
        let penalty = self.config.weight_decay.as_ref();
        let shape = [parameter.shape()[0], parameter.shape()[1]];
        let rule = Rule::built_in::<0>(Decayed {
            decay: penalty.map_or(1.0, |decay| 1.0 - lr * f64::from(decay.penalty)),
            learning_rate: lr * Self::adjustment(shape, self.config.adjust_lr_fn),
        });
        let weight = formats.weight(parameter, residual);
        let (weight, _) = kernel::update(rule, weight, direction, Vec::new(), time);
        let state = state.map(|mut state| {
            if !formats.is_plain {
                (state.time, state.residual) = (time, weight.residual);
            }
            MuonState(state)
        });
        (weight.value, state)
    }

    fn to_device<const D: usize>(state: MuonState<D>, device: &Device) -> MuonState<D> {
        MuonState(ElementWiseOptimizer::to_device(state.0, device))
    }
}

impl<const D: usize> RecordState for MuonState<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        self.0.state_flatten(prefix, sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        if let Err(reason) = check_matrix::<D>() {
            // A query loads a record for the parameter.
            call::with(|call| call.refusal = Some(reason));
            return None;
        }
        ElementWiseState::state_unflatten(prefix, source, device).map(Self)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::optim as stock;
    use burn::tensor::Distribution;
    use rayon::ThreadPoolBuilder;

    use super::*;

    fn total(matrix: &Tensor<2>) -> f64 {
        sum_in_order(matrix.clone()).into_scalar()
    }

    #[test]
    fn sum_of_large_matrix_is_independent_of_threads() {
        // A row is longer than a part, or a part has several rows.
        for shape in [[2, PARALLEL + 5], [2048, 2049]] {
            let matrix = Tensor::random(shape, Distribution::Default, &Device::flex());
            let on = |threads| {
                let pool = ThreadPoolBuilder::new().num_threads(threads).build();
                pool.unwrap().install(|| total(&matrix))
            };
            let one = on(1);
            for _ in 0..5 {
                assert_eq!(on(4), one, "{shape:?}");
            }
        }
    }

    #[test]
    fn step_of_large_matrix_in_f64_equals_that_of_burn() {
        let random = || {
            let options = (&Device::flex(), DType::F64);
            Tensor::<2>::random([4, PARALLEL / 4 + 1], Distribution::Default, options)
        };
        let (parameter, gradient) = (random(), random());
        let step = |optimizer: &dyn Fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
            optimizer(parameter.clone(), gradient.clone()).into_data()
        };
        let ours = MuonConfig::new().build();
        let stock = stock::MuonConfig::new().build();
        assert_eq!(
            step(&|parameter, gradient| ours.step(0.02, parameter, gradient, None).0),
            step(&|parameter, gradient| stock.step(0.02, parameter, gradient, None).0),
        );
    }
}
