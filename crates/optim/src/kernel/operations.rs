//! A rule in tensor operations, for backends without a kernel: the operations of Burn's own optimizers, in their order.

use std::ops::{Add, Div, Mul, Sub};

use burn::tensor::{DType, Tensor};

use super::super::rule::{Operation, Traced};
use super::Update;

/// A value of a program.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // There are a few dozen.
enum Value<const D: usize> {
    Tensor(Tensor<D>),
    /// One value for all elements.
    Number(f64),
}

/// Updates a weight and its states.
pub(super) fn update<const D: usize>(
    update: &Update,
    gradient: Tensor<D>,
    mut floats: Vec<Tensor<D>>,
) -> Vec<Tensor<D>> {
    let rule = update.traced();
    let options = (gradient.device(), gradient.dtype());
    let shape = gradient.shape();
    let tensor = |value: Value<D>| match value {
        Value::Tensor(tensor) => tensor,
        Value::Number(number) => Tensor::full(shape.clone(), number, (&options.0, options.1)),
    };
    // The gradient is the second input.
    floats.insert(1, gradient);
    let inputs = floats.into_iter().map(|input| Some(Value::Tensor(input)));
    let mut values: Vec<_> = inputs.collect();
    let last = last_uses(&rule, values.len());
    for (index, operation) in rule.program.operations.iter().enumerate() {
        // The last use of a value takes it, so that it may be written in place.
        let mut take = |place: usize, again: bool| {
            let value = match last[place] == index && !again {
                true => values[place].take(),
                false => values[place].clone(),
            };
            value.expect("it is needed later")
        };
        macro_rules! binary {
            ($a:expr, $b:expr, $operation:ident, $with_number:ident) => {
                match (take($a, $a == $b), take($b, false)) {
                    (Value::Number(a), Value::Number(b)) => Value::Number(match options.1 {
                        DType::F64 => a.$operation(b),
                        _ => (a as f32).$operation(b as f32).into(),
                    }),
                    (Value::Tensor(a), Value::Number(b)) => Value::Tensor(a.$with_number(b)),
                    (a, b) => Value::Tensor(tensor(a).$operation(tensor(b))),
                }
            };
        }
        let value = match *operation {
            Operation::Number(number) => Value::Number(rule.numbers[number]),
            Operation::Sqrt(a) => Value::Tensor(tensor(take(a, false)).sqrt()),
            Operation::Add(a, b) => binary!(a, b, add, add_scalar),
            Operation::Sub(a, b) => binary!(a, b, sub, sub_scalar),
            Operation::Mul(a, b) => binary!(a, b, mul, mul_scalar),
            Operation::Div(a, b) => binary!(a, b, div, div_scalar),
            Operation::IfLess(a, b, then, otherwise) => {
                let [a, b, then, otherwise] =
                    [a, b, then, otherwise].map(|place| take(place, true));
                let is_less = match (a, b) {
                    (Value::Tensor(a), Value::Number(b)) => a.lower_scalar(b),
                    (Value::Number(a), Value::Tensor(b)) => b.greater_scalar(a),
                    (a, b) => tensor(a).lower(tensor(b)),
                };
                Value::Tensor(match (then, tensor(otherwise)) {
                    (Value::Number(then), otherwise) => otherwise.mask_fill(is_less, then),
                    (Value::Tensor(then), otherwise) => otherwise.mask_where(is_less, then),
                })
            }
        };
        values.push(Some(value));
    }
    let results = rule.program.results.iter();
    let result = |place: &usize| tensor(values[*place].clone().expect("a result is kept"));
    results.map(result).collect()
}

/// Returns the operation that uses each value last. The first `inputs` values are inputs; results are used after all
/// operations.
fn last_uses(rule: &Traced, inputs: usize) -> Vec<usize> {
    let operations = &rule.program.operations;
    let mut last = vec![0; inputs + operations.len()];
    for (index, operation) in operations.iter().enumerate() {
        match *operation {
            Operation::Number(_) => {}
            Operation::Sqrt(a) => last[a] = index,
            Operation::Add(a, b)
            | Operation::Sub(a, b)
            | Operation::Mul(a, b)
            | Operation::Div(a, b) => (last[a], last[b]) = (index, index),
            Operation::IfLess(a, b, then, otherwise) => {
                for place in [a, b, then, otherwise] {
                    last[place] = index;
                }
            }
        }
    }
    for result in &rule.program.results {
        last[*result] = usize::MAX;
    }
    last
}
