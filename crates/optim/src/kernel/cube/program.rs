use burn_cubecl::cubecl;
use cubecl::prelude::*;

use crate::rule::{Operation, Program};

/// Returns the parameter and the states after a step, in this order, from the parameter, the gradient and the states before:
/// vectors of elements.
#[cube]
pub(super) fn run<C: Float, N: Size>(
    inputs: &Sequence<Vector<C, N>>,
    numbers: &Sequence<InputScalar>,
    #[comptime] program: Program,
) -> Sequence<Vector<C, N>> {
    let mut values = Sequence::<Vector<C, N>>::new();
    #[unroll]
    for input in 0..inputs.len() {
        values.push(*inputs.index(input));
    }
    #[unroll]
    for index in 0..program.operations.len() {
        let operation = comptime!(program.operations[index]);
        let value = match operation {
            Operation::Number(number) => Vector::new(numbers.index(number).get::<C>()),
            Operation::Add(a, b) => *values.index(a) + *values.index(b),
            Operation::Sub(a, b) => *values.index(a) - *values.index(b),
            Operation::Mul(a, b) => *values.index(a) * *values.index(b),
            Operation::Div(a, b) => *values.index(a) / *values.index(b),
            Operation::Sqrt(a) => Vector::sqrt(*values.index(a)),
            Operation::IfLess(a, b, then, otherwise) => select_many(
                values.index(a).less_than(values.index(b)),
                *values.index(then),
                *values.index(otherwise),
            ),
        };
        values.push(value);
    }
    let mut results = Sequence::<Vector<C, N>>::new();
    #[unroll]
    for index in 0..program.results.len() {
        let result = comptime!(program.results[index]);
        results.push(*values.index(result));
    }
    results
}
