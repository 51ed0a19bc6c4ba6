//! Comparison of an operation with Burn's composition.

use backburn_base::{AnyTensor, lift, of_data, with_dims};
use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor, TensorData};

use crate::view::View;

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

fn elements(tensor: AnyTensor) -> Vec<f64> {
    tensor
        .0
        .into_data()
        .convert_dtype(DType::F64)
        .iter()
        .collect()
}

/// The way in which an operation is run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The type to which the numbers are rounded.
    rounded: DType,
    dtype: DType,
    view: View,
    /// The only input without a gradient.
    frozen: Option<usize>,
    /// `true` if the output is used twice.
    is_used_twice: bool,
    strategy: GradientCheckpointingStrategy,
    /// Replaces the middle element of this input.
    special: Option<(usize, f64)>,
}

impl Run {
    fn of(dtype: DType) -> Self {
        Self {
            rounded: dtype,
            dtype,
            view: View::Whole,
            frozen: None,
            is_used_twice: false,
            strategy: GradientCheckpointingStrategy::Disabled,
            special: None,
        }
    }

    /// Creates the numbers of an input, without autodiff.
    fn input(&self, shape: &[usize], seed: usize) -> AnyTensor {
        let mut numbers = numbers(shape.iter().product(), seed);
        if let Some((input, special)) = self.special
            && input == seed
        {
            let middle = numbers.len() / 2;
            numbers[middle] = special;
        }
        let data = TensorData::new(numbers, shape.to_vec()).convert_dtype(self.rounded);
        AnyTensor(of_data(data.convert_dtype(self.dtype), &Device::flex()))
    }

    /// Creates the inputs in their layout, each prepared.
    fn inputs<const D: usize>(
        &self,
        case: &Case<'_, D>,
        prepare: impl Fn(usize, AnyTensor) -> AnyTensor,
    ) -> Vec<AnyTensor> {
        let inputs = case.inputs.iter().enumerate();
        let inputs = inputs.map(|(index, shape)| {
            let viewed = self.input(&self.view.viewed(shape), index);
            let view = with_dims!(shape.len(), R => {
                AnyTensor::from(self.view.of(viewed.of_dims::<R>(), shape))
            });
            prepare(index, view)
        });
        inputs.collect()
    }

    fn run<const D: usize>(&self, case: &Case<'_, D>, function: Function<'_, D>) -> Found {
        let inputs = self.inputs(case, |index, input| {
            let input = lift(input.0, self.strategy);
            match self.frozen == Some(index) {
                true => AnyTensor(input),
                false => AnyTensor(input.require_grad()),
            }
        });
        let output = function(&inputs);
        let dtype = output.dtype();
        let weights = |shape: &[usize]| {
            let how = Self {
                dtype,
                ..Self::of(self.rounded)
            };
            lift(how.input(shape, 100).0, self.strategy)
        };
        let mut loss = self.view.sum(output.clone(), |shape| {
            AnyTensor(weights(shape)).of_dims::<D>()
        });
        if self.is_used_twice {
            loss = loss + output.clone().sum() * 0.5;
        }
        let gradients = loss.backward();
        let gradient = |input: &AnyTensor| input.0.grad(&gradients).map(|it| elements(it.into()));
        let output = elements(output.inner().into());
        std::iter::once(Some(output))
            .chain(inputs.iter().map(gradient))
            .collect()
    }
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
    let is_empty = case.inputs.iter().flatten().any(|size| *size == 0);
    let frozen = (0..case.inputs.len()).map(Some).chain([None]);
    for frozen in frozen.filter(|frozen| frozen.is_none() || case.inputs.len() > 1) {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            for is_used_twice in [false, true] {
                let how = Run {
                    frozen,
                    is_used_twice,
                    ..Run::of(dtype)
                };
                let found = how.run(case, case.operation);
                match is_empty {
                    // Burn has no composition for some of these.
                    true => assert_zeros(case, frozen, &found),
                    false => assert_near(case, how, &found),
                }
                if frozen.is_none() {
                    assert_same_on_threads(case, how, &found);
                }
            }
        }
    }
    if !is_empty {
        assert_views(case);
    }
}

#[track_caller]
fn assert_views<const D: usize>(case: &Case<'_, D>) {
    for view in View::OTHERS {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let how = Run {
                view,
                ..Run::of(dtype)
            };
            assert_near(case, how, &how.run(case, case.operation));
        }
    }
    let how = Run {
        strategy: GradientCheckpointingStrategy::Balanced,
        ..Run::of(DType::F32)
    };
    let balanced = how.run(case, case.operation);
    assert_eq!(
        balanced,
        Run::of(DType::F32).run(case, case.operation),
        "{}",
        case.name
    );
}

/// Checks that the output and the gradients are as near to f64 as those of Burn.
#[track_caller]
fn assert_near<const D: usize>(case: &Case<'_, D>, how: Run, found: &Found) {
    let longest = case.inputs.iter().flatten().max().copied().unwrap_or(1);
    let epsilon = match how.dtype {
        // The composition in f64 rounds its sums, too.
        DType::F64 => 1e-15 * (longest as f64).sqrt(),
        DType::BF16 => 4e-3,
        DType::F16 => 5e-4,
        _ => 6e-8,
    };
    let stock = how.run(case, case.stock);
    let exact = Run {
        dtype: DType::F64,
        ..how
    };
    let exact = exact.run(case, case.exact.unwrap_or(case.stock));
    let what = format!("{} of {:?}, {how:?}", case.name, case.inputs);
    let of_all = norm(exact.iter().flatten().flatten().copied());
    let of_ones = exact.iter().flatten().map(Vec::len).max();
    let of_ones = (of_ones.unwrap_or(0) as f64).sqrt();
    let all = found.iter().zip(&stock).zip(&exact).enumerate();
    for (index, ((found, stock), exact)) in all {
        assert_eq!(found.is_some(), exact.is_some(), "{what}: {index}");
        let (Some(found), Some(stock), Some(exact)) = (found, stock, exact) else {
            continue;
        };
        // In a view inputs are equal and results may cancel: the size is that of all results, or of the largest with ones.
        let size = match how.view {
            View::Whole => norm(exact.iter().copied()),
            _ => of_all.max(of_ones),
        };
        let (ours, burns) = (distance(found, exact), distance(stock, exact));
        // In f64 Burn's norms are in f32.
        let burns = if how.dtype == DType::F64 { 0.0 } else { burns };
        let allowed = 1.2 * burns + 8.0 * epsilon * size;
        assert!(
            ours <= allowed,
            "{what}: {index}: {ours:e} from f64 of size {size:e}, Burn {burns:e}"
        );
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
fn assert_same_on_threads<const D: usize>(case: &Case<'_, D>, how: Run, expected: &Found) {
    let what = format!("{} of {:?}, {how:?}", case.name, case.inputs);
    let bits = |found: &Found| {
        let all = found.iter().flatten().flatten();
        all.map(|number| number.to_bits()).collect::<Vec<_>>()
    };
    for threads in [1, 2, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.build().expect("threads are free");
        let found = pool.install(|| how.run(case, case.operation));
        assert_eq!(bits(&found), bits(expected), "{what}: {threads} threads");
    }
    // Inference: without autodiff the output is the same.
    let inputs = how.inputs(case, |_, input| input);
    let output = (case.operation)(&inputs);
    assert!(!output.is_autodiff(), "{what}");
    let output = elements(output.into());
    assert_eq!(Some(&output), expected[0].as_ref(), "{what}: inference");
}

/// NaN, or the sign of an infinity.
fn place(number: f64) -> Option<&'static str> {
    match number {
        number if number.is_nan() => Some("NaN"),
        f64::INFINITY => Some("infinity"),
        f64::NEG_INFINITY => Some("negative infinity"),
        _ => None,
    }
}

/// Checks that the output has NaN and infinity in the places of Burn's composition, and that each gradient has them in such places
/// only, and in some if Burn's has.
#[track_caller]
pub fn assert_same_places<const D: usize>(case: &Case<'_, D>) {
    for (input, special) in (0..case.inputs.len())
        .flat_map(|input| [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|it| (input, it)))
    {
        for dtype in [DType::F32, DType::F64] {
            let how = Run {
                special: Some((input, special)),
                ..Run::of(dtype)
            };
            let found = how.run(case, case.operation);
            let stock = how.run(case, case.stock);
            for (index, (found, stock)) in found.iter().zip(&stock).enumerate() {
                let [found, stock] = [found, stock].map(|it| {
                    let numbers = it.iter().flatten().copied();
                    numbers.map(place).collect::<Vec<_>>()
                });
                let is_finite = |all: &[Option<_>]| all.iter().all(Option::is_none);
                let is_same = match index {
                    0 => found == stock,
                    _ => {
                        let mut places = found.iter().zip(&stock);
                        let is_worse = places.any(|(it, burn)| it.is_some() && burn.is_none());
                        !is_worse && is_finite(&found) == is_finite(&stock)
                    }
                };
                assert!(
                    is_same,
                    "{} of {:?}, {how:?}: {index}: {found:?}, Burn {stock:?}",
                    case.name, case.inputs
                );
            }
        }
    }
}
