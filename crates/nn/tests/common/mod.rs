//! Comparison of an operation with Burn's composition.

use backburn_base::{AnyTensor, lift, of_data};
use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};

type Function<'a, const D: usize> = &'a (dyn Fn(&[AnyTensor]) -> Tensor<D> + Sync);

/// An operation and its compositions, for inputs of these shapes.
pub struct Case<'a, const D: usize> {
    pub name: &'a str,
    pub inputs: Vec<Vec<usize>>,
    pub operation: Function<'a, D>,
    pub stock: Function<'a, D>,
    /// The composition in f64, if `stock` computes in f32.
    pub exact: Option<Function<'a, D>>,
}

/// The output, then the gradients; `None` for an input without one.
type Found = Vec<Option<Vec<f64>>>;

/// Creates a parameter that is tracked only if `value` is.
pub fn param(value: &AnyTensor) -> Param<Tensor<1>> {
    Param::initialized(ParamId::new(), value.0.clone())
}

/// Returns numbers from -2 to 2, another sequence for each `seed`.
fn numbers(length: usize, seed: usize) -> Vec<f64> {
    let number = |index: usize| {
        let hashed = (index + 7919 * (seed + 1)).wrapping_mul(2_654_435_761) % 1_000_003;
        hashed as f64 / 250_000.75 - 2.0
    };
    (0..length).map(number).collect()
}

/// Creates an input, rounded to `rounded`, in `dtype`.
fn input(shape: &[usize], seed: usize, rounded: DType, dtype: DType) -> AnyTensor {
    let data = TensorData::new(numbers(shape.iter().product(), seed), shape.to_vec());
    let data = data.convert_dtype(rounded).convert_dtype(dtype);
    AnyTensor(of_data(data, &Device::flex()))
}

fn elements(tensor: AnyTensor) -> Vec<f64> {
    tensor
        .0
        .into_data()
        .convert_dtype(DType::F64)
        .iter()
        .collect()
}

/// The way in which an operation is run.
#[derive(Clone, Copy)]
struct Run {
    rounded: DType,
    dtype: DType,
    /// The only input without a gradient.
    frozen: Option<usize>,
    /// `true` if the output is used twice.
    is_used_twice: bool,
}

fn run<const D: usize>(case: &Case<'_, D>, function: Function<'_, D>, run: Run) -> Found {
    let strategy = Device::flex().autodiff();
    let strategy = Tensor::<1>::zeros([1], &strategy).gradient_checkpointing_strategy();
    let inputs = case.inputs.iter().enumerate();
    let inputs = inputs.map(|(index, shape)| {
        let input = input(shape, index, run.rounded, run.dtype);
        let input = lift(input.0, strategy.expect("the device has autodiff"));
        match run.frozen == Some(index) {
            true => AnyTensor(input),
            false => AnyTensor(input.require_grad()),
        }
    });
    let inputs: Vec<_> = inputs.collect();
    let output = function(&inputs);
    let like = &output.dims();
    let weights = input(like, 100, run.rounded, output.dtype()).of_rank::<D>();
    let mut loss = (output.clone() * Tensor::from_inner(weights)).sum();
    if run.is_used_twice {
        loss = loss + output.clone().sum() * 0.5;
    }
    let gradients = loss.backward();
    let gradient = |input: &AnyTensor| input.0.grad(&gradients).map(|it| elements(AnyTensor(it)));
    let output = elements(output.inner().into());
    let all = inputs.iter().map(gradient);
    std::iter::once(Some(output)).chain(all).collect()
}

fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|number| number * number).sum::<f64>().sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    norm(a.iter().zip(b).map(|(a, b)| a - b))
}

/// Checks an operation in all types, with and without gradients, and on several numbers of threads.
#[track_caller]
pub fn assert_case<const D: usize>(case: &Case<'_, D>) {
    let exact = case.exact.unwrap_or(case.stock);
    let frozen = (0..case.inputs.len()).map(Some).chain([None]);
    for frozen in frozen.filter(|frozen| frozen.is_none() || case.inputs.len() > 1) {
        for (dtype, epsilon) in [
            (DType::F32, 6e-8),
            (DType::F64, 1e-15),
            (DType::BF16, 4e-3),
            (DType::F16, 5e-4),
        ] {
            for is_used_twice in [false, true] {
                let how = Run {
                    rounded: dtype,
                    dtype,
                    frozen,
                    is_used_twice,
                };
                let found = run(case, case.operation, how);
                if case.inputs.iter().flatten().any(|size| *size == 0) {
                    // Burn has no composition for some of these.
                    assert_zeros(case, frozen, &found);
                    continue;
                }
                let stock = run(case, case.stock, how);
                let exact = run(
                    case,
                    exact,
                    Run {
                        dtype: DType::F64,
                        ..how
                    },
                );
                let what = format!(
                    "{} of {:?} in {dtype:?}, frozen: {frozen:?}, used twice: {is_used_twice}",
                    case.name, case.inputs
                );
                let all = found.iter().zip(&stock).zip(&exact).enumerate();
                for (index, ((found, stock), exact)) in all {
                    assert_eq!(found.is_some(), exact.is_some(), "{what}: {index}");
                    let (Some(found), Some(stock), Some(exact)) = (found, stock, exact) else {
                        continue;
                    };
                    let size = norm(exact.iter().copied());
                    let (ours, burns) = (distance(found, exact), distance(stock, exact));
                    // In f64 Burn's norms are in f32.
                    let burns = if dtype == DType::F64 { 0.0 } else { burns };
                    let allowed = 1.2 * burns + 8.0 * epsilon * size;
                    assert!(
                        ours <= allowed,
                        "{what}: {index}: {ours:e} from f64 of size {size:e}, Burn {burns:e}"
                    );
                }
                if frozen.is_none() {
                    assert_same_on_threads(case, how, &found, &what);
                }
            }
        }
    }
}

/// Checks gradients without elements to sum.
#[track_caller]
fn assert_zeros<const D: usize>(case: &Case<'_, D>, frozen: Option<usize>, found: &Found) {
    for (index, shape) in case.inputs.iter().enumerate() {
        let expected = vec![0.0; shape.iter().product()];
        let expected = (frozen != Some(index)).then_some(expected);
        assert_eq!(found[index + 1], expected, "{}: {index}", case.name);
    }
}

#[track_caller]
fn assert_same_on_threads<const D: usize>(
    case: &Case<'_, D>,
    how: Run,
    expected: &Found,
    what: &str,
) {
    let bits = |found: &Found| {
        let all = found.iter().flatten().flatten();
        all.map(|number| number.to_bits()).collect::<Vec<_>>()
    };
    for threads in [1, 2, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.build().expect("threads are free");
        let found = pool.install(|| run(case, case.operation, how));
        assert_eq!(bits(&found), bits(expected), "{what}: {threads} threads");
    }
    // Inference: without autodiff the output is the same.
    let inputs = case.inputs.iter().enumerate();
    let inputs = inputs.map(|(index, shape)| input(shape, index, how.rounded, how.dtype));
    let output = (case.operation)(&inputs.collect::<Vec<_>>());
    assert!(!output.is_autodiff(), "{what}");
    let output = elements(output.into());
    assert_eq!(Some(&output), expected[0].as_ref(), "{what}: inference");
}
