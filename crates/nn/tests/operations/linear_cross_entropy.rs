//! Head and loss.

use backburn_base::AnyTensor;
use backburn_nn::{LinearCrossEntropyOptions, linear_cross_entropy};
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Device, FloatDType, Int, IntDType, Tensor, TensorData, Tolerance};

use crate::case::{Case, assert_case, assert_same_places};

/// The tokens that are ignored.
#[derive(Clone, Copy, Debug)]
enum Ignored {
    None,
    EveryThird,
    All,
}

/// `is_weighted` gives each token a weight, 0 among them; `is_transposed` passes the weight of a linear layer.
#[derive(Clone, Debug)]
struct Problem {
    /// Tokens, classes and width.
    sizes: [usize; 3],
    options: LinearCrossEntropyOptions,
    ignored: Ignored,
    is_weighted: bool,
    is_transposed: bool,
}

impl Problem {
    fn new(sizes: [usize; 3], chunk_size: usize) -> Self {
        Self {
            sizes,
            options: LinearCrossEntropyOptions {
                chunk_size,
                ..Default::default()
            },
            ignored: Ignored::None,
            is_weighted: false,
            is_transposed: false,
        }
    }

    fn smoothed(mut self, smoothing: f64, soft_cap: Option<f64>) -> Self {
        self.options.smoothing = smoothing;
        self.options.soft_cap = soft_cap;
        self
    }

    fn ignoring(mut self, ignored: Ignored) -> Self {
        self.options.ignored = Some(-100);
        self.ignored = ignored;
        self
    }

    fn weighted_and_transposed(mut self) -> Self {
        (self.is_weighted, self.is_transposed) = (true, true);
        self
    }

    fn targets(&self) -> Tensor<1, Int> {
        let [tokens, classes, _] = self.sizes;
        let target = |token: usize| match self.ignored {
            Ignored::EveryThird if token % 3 == 1 => -100,
            Ignored::All => -100,
            _ => (token * 7 % classes) as i64,
        };
        let targets: Vec<i64> = (0..tokens).map(target).collect();
        Tensor::from_data(TensorData::new(targets, [tokens]), &Device::flex())
    }

    fn weights(&self) -> Option<Tensor<1>> {
        let [tokens, ..] = self.sizes;
        let weights: Vec<f32> = (0..tokens).map(|token| token as f32 * 0.5 - 1.0).collect();
        let data = TensorData::new(weights, [tokens]);
        self.is_weighted
            .then(|| Tensor::from_data(data, &Device::flex()))
    }

    fn weight(&self, inputs: &[AnyTensor]) -> Tensor<2> {
        let weight: Tensor<2> = inputs[1].clone().of_dims();
        match self.is_transposed {
            true => weight.transpose(),
            false => weight,
        }
    }

    fn stock(&self, inputs: &[AnyTensor]) -> Tensor<1> {
        let [tokens, classes, _] = self.sizes;
        let hidden: Tensor<2> = inputs[0].clone().of_dims();
        let logits = hidden.matmul(self.weight(inputs).transpose());
        let dtype = match logits.dtype() {
            DType::F64 => FloatDType::F64,
            _ => FloatDType::F32,
        };
        let logits = logits.cast(dtype);
        let logits = match self.options.soft_cap {
            // Burn's gradient of a division by a number is rounded to f32.
            Some(cap) => (logits * cap.recip()).tanh() * cap,
            None => logits,
        };
        let all = log_softmax(logits, 1);
        let is_ignored = self.targets().equal_scalar(-100);
        let index = self.targets().mask_fill(is_ignored.clone(), 0);
        let index = index.reshape([tokens, 1]);
        let of_targets = all.clone().gather(1, index).reshape([tokens]);
        let of_all = all.sum_dim(1).reshape([tokens]) * (classes as f64).recip();
        let share = self.options.smoothing;
        let losses = (of_targets * (1.0 - share) + of_all * share).neg();
        let losses = losses.mask_fill(is_ignored, 0);
        match self.weights() {
            Some(weights) => (losses * weights.cast(dtype)).sum(),
            None => losses.sum(),
        }
    }

    fn checked(&self, check: impl Fn(&Case<'_, 1>)) {
        let [tokens, classes, d_model] = self.sizes;
        let weight = match self.is_transposed {
            true => vec![d_model, classes],
            false => vec![classes, d_model],
        };
        check(&Case {
            name: &format!("linear_cross_entropy, {self:?}"),
            inputs: vec![vec![tokens, d_model], weight],
            operation: &|inputs| {
                let hidden = inputs[0].clone().of_dims();
                let (weight, targets) = (self.weight(inputs), self.targets());
                linear_cross_entropy(hidden, weight, targets, self.weights(), &self.options)
            },
            stock: &|inputs| self.stock(inputs),
            exact: None,
        });
    }
}

#[test]
fn linear_cross_entropy_equals_composition() {
    use Ignored::{All, EveryThird};
    let new = Problem::new;
    for problem in [
        new([5, 11, 6], 256),
        // The products of a chunk run on several threads: `gemm` uses them from 48 * 48 * 256 multiplications on.
        new([70, 1100, 32], 32).ignoring(EveryThird),
        new([9, 37, 8], 4)
            .smoothed(0.1, Some(3.0))
            .ignoring(EveryThird),
        // Without columns.
        new([5, 11, 0], 2).ignoring(EveryThird),
        // One of each.
        new([1, 5, 4], 1),
        new([5, 2, 1], 2),
        new([3, 1, 4], 2),
        new([7, 5, 3], 1).smoothed(1.0, None),
        new([7, 5, 3], usize::MAX).smoothed(0.0, Some(0.5)),
        new([5, 11, 6], 2).ignoring(All),
        new([0, 3, 4], 256),
    ] {
        problem.checked(assert_case);
        problem.weighted_and_transposed().checked(assert_case);
    }
}

/// A head in a half type and the gradient of a head are computed in parts, here in several.
#[test]
fn linear_cross_entropy_with_large_head_equals_composition() {
    let device = Device::flex();
    let numbers = |rows: i64| {
        let all = Tensor::<1, Int>::arange(0..rows * 1000, &device);
        (all.float() * 0.7).sin().reshape([rows, 1000])
    };
    let hidden = numbers(5);
    for is_transposed in [false, true] {
        let mut problem = Problem::new([5, 5000, 1000], 3);
        problem.is_transposed = is_transposed;
        let run = |weight: Tensor<2>, loss: &dyn Fn(&[AnyTensor]) -> Tensor<1>| {
            let [hidden, weight] = [hidden.clone(), weight].map(|it| it.autodiff().require_grad());
            let loss = loss(&[hidden.clone().into(), weight.clone().into()]);
            let gradients = loss.backward();
            let gradients = [hidden, weight].map(|it| it.grad(&gradients).unwrap());
            (loss.into_data(), gradients)
        };
        let operation = |inputs: &[AnyTensor]| {
            let (hidden, weight) = (inputs[0].clone().of_dims(), problem.weight(inputs));
            linear_cross_entropy(hidden, weight, problem.targets(), None, &problem.options)
        };
        for dtype in [FloatDType::BF16, FloatDType::F16] {
            let weight = (numbers(5000) * 0.1).cast(dtype);
            let weight = match is_transposed {
                true => weight.transpose(),
                false => weight,
            };
            let (found, [of_hidden, of_weight]) = run(weight.clone(), &operation);
            let weight = weight.cast(FloatDType::F32);
            let (in_f32, [hidden_in_f32, weight_in_f32]) = run(weight.clone(), &operation);
            found.assert_eq(&in_f32, true);
            let narrowed = weight_in_f32.clone().cast(dtype).into_data();
            of_weight.into_data().assert_eq(&narrowed, true);
            let near = |a: Tensor<2>, b: Tensor<2>, absolute| {
                let tolerance = Tolerance::<f32>::rel_abs(1e-5, absolute);
                a.into_data().assert_approx_eq(&b.into_data(), tolerance);
            };
            near(of_hidden, hidden_in_f32.clone(), 1e-6);
            let (_, [hidden_of_stock, weight_of_stock]) =
                run(weight, &|inputs| problem.stock(inputs));
            near(hidden_in_f32, hidden_of_stock, 1e-6);
            near(weight_in_f32, weight_of_stock, 1e-9);
        }
    }
}

#[test]
fn linear_cross_entropy_spreads_nan_and_infinity_as_composition() {
    let problem = Problem::new([3, 5, 4], 2);
    problem
        .clone()
        .smoothed(0.1, None)
        .checked(assert_same_places);
    problem.checked(assert_same_places);
}

#[test]
fn linear_cross_entropy_infinite_factor_leaves_ignored_tokens_zero() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F64] {
        let problem = Problem::new([5, 3, 4], 2).ignoring(Ignored::EveryThird);
        let ones = |rows| Tensor::<2>::ones([rows, 4], (&device, dtype)).require_grad();
        let hidden = ones(5);
        let (targets, options) = (problem.targets(), &problem.options);
        let loss = linear_cross_entropy(hidden.clone(), ones(3), targets, None, options);
        let zero = Tensor::zeros([1], (&device, dtype));
        let gradient = hidden.grad(&(loss / zero).backward()).unwrap();
        let is_zero = gradient.equal_scalar(0).all_dim(1).into_data();
        assert_eq!(
            is_zero.iter::<bool>().collect::<Vec<_>>(),
            [false, true, false, false, true]
        );
    }
}

/// The factor of the mean is infinite.
#[test]
fn linear_cross_entropy_mean_over_no_token_has_zero_gradients() {
    let device = Device::flex().autodiff();
    for (tokens, dtype) in [
        (5, DType::F32),
        (5, DType::F64),
        (0, DType::F32),
        (0, DType::F64),
    ] {
        let problem = Problem::new([tokens, 3, 4], 2).ignoring(Ignored::All);
        let ones = |rows| Tensor::<2>::ones([rows, 4], (&device, dtype)).require_grad();
        let inputs = [ones(tokens), ones(3)];
        let [hidden, weight] = inputs.clone();
        let loss = linear_cross_entropy(hidden, weight, problem.targets(), None, &problem.options);
        let count = Tensor::zeros([1], (&device, dtype));
        let gradients = (loss / count).backward();
        for input in &inputs {
            let gradient = input.grad(&gradients).unwrap();
            let zeros = gradient.zeros_like();
            assert_eq!(
                gradient.into_data(),
                zeros.into_data(),
                "{tokens}, {dtype:?}"
            );
        }
    }
}

/// The composition compares targets with the number of classes, which their type may not represent.
#[test]
fn linear_cross_entropy_of_narrow_targets_equals_that_of_i64() {
    for (dtype, classes) in [
        (IntDType::U8, 256),
        (IntDType::I8, 300),
        (IntDType::U16, 300),
    ] {
        for (ignored, float) in [None, Some(-100), Some(3)]
            .into_iter()
            .flat_map(|ignored| [FloatDType::F32, FloatDType::F64].map(|float| (ignored, float)))
        {
            let numbers = |shape: [usize; 2]| {
                let all =
                    Tensor::<1, Int>::arange(0..(shape[0] * shape[1]) as i64, &Device::flex());
                (all.float() * 0.7).sin().reshape(shape).cast(float)
            };
            let targets = Tensor::<1, Int>::from_data([0, 3, 100, 127, 5], &Device::flex());
            let options = LinearCrossEntropyOptions {
                ignored,
                ..Default::default()
            };
            let loss = |targets| {
                let (hidden, weight) = (numbers([5, 4]), numbers([classes, 4]));
                linear_cross_entropy(hidden, weight, targets, None, &options).into_data()
            };
            let (found, expected) = (loss(targets.clone().cast(dtype)), loss(targets));
            found.assert_eq(&expected, true);
            assert!(expected.iter::<f64>().all(f64::is_finite), "{expected:?}");
        }
    }
}

/// A logit is the same in f32 and in f64, so only the loss is rounded.
#[test]
fn linear_cross_entropy_of_large_logits_is_near_f64() {
    for (logits, target) in [
        ([20.0, 8.0, 7.0], 0),
        ([1000.0, 992.0, 3.0], 0),
        ([-500.0, -510.0, -512.0], 0),
        ([10_000.0, 10_003.0, -4.0], 0),
        ([30.0, 29.0, 2.0], 2),
    ] {
        for smoothing in [0.0, 0.1] {
            let largest = logits.into_iter().fold(f64::NEG_INFINITY, f64::max);
            let all: f64 = logits.iter().map(|it| (it - largest).exp()).sum();
            let loss = |logit: f64| all.ln() - (logit - largest);
            let mean = logits.into_iter().map(loss).sum::<f64>() / 3.0;
            let exact = loss(logits[target]) * (1.0 - smoothing) + mean * smoothing;
            let device = Device::flex();
            let hidden = Tensor::<2>::from_data([[1.0_f32]], &device);
            let weight = Tensor::<2>::from_data(logits.map(|it| [it as f32]), &device);
            let targets = Tensor::<1, Int>::from_data([target as i64], &device);
            let options = LinearCrossEntropyOptions {
                smoothing,
                ..Default::default()
            };
            let found = linear_cross_entropy(hidden, weight, targets, None, &options);
            let found = found.into_scalar::<f64>();
            // The sum of the exponentials is above 1, so its logarithm is rounded by a part of 1.
            let most = exact * 1e-6 + 2e-7;
            assert!(
                (found - exact).abs() <= most,
                "{logits:?}, {target}, {smoothing}: {found} and {exact}"
            );
        }
    }
}
