//! Traces of formulas: the lists of operations that kernels and tensor operations run.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Sub};

use super::UpdateRule;
use super::number::{Number, sealed};

/// An operation on earlier values: the parameter, the gradient, the states, then the results of earlier operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// The hyperparameter or constant of this index.
    Number(usize),
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    Div(usize, usize),
    Sqrt(usize),
    /// The third value if the first is less than the second, or else the fourth.
    IfLess(usize, usize, usize, usize),
}

/// The operations of a formula, without its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Program {
    pub(crate) operations: Vec<Operation>,
    /// Indices of the values that are the parameter and the states after the step.
    pub(crate) results: Vec<usize>,
}

/// A formula with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Traced {
    pub(crate) program: Program,
    pub(crate) numbers: Vec<f64>,
}

#[derive(Default)]
struct Tape {
    /// Number of values before the first operation.
    inputs: usize,
    operations: Vec<Operation>,
    numbers: Vec<f64>,
}

thread_local! {
    /// Tape of the formula that is traced on this thread.
    static TAPE: RefCell<Tape> = RefCell::default();
}

impl Traced {
    /// Runs `rule` and records its operations.
    pub(crate) fn of<const S: usize>(rule: &impl UpdateRule<S>) -> Self {
        TAPE.set(Tape {
            inputs: 2 + S,
            ..Tape::default()
        });
        let states = std::array::from_fn(|state| TracedNumber(2 + state));
        let (parameter, states) = rule.update(TracedNumber(0), TracedNumber(1), states);
        let Tape {
            operations,
            numbers,
            ..
        } = TAPE.take();
        let results = [parameter].into_iter().chain(states);
        let program = Program {
            operations,
            results: results.map(|TracedNumber(value)| value).collect(),
        };
        Self { program, numbers }
    }
}

/// A number that records the operations on it, by the index of its value.
#[derive(Clone, Copy)]
struct TracedNumber(usize);

fn record(operation: Operation) -> TracedNumber {
    TAPE.with_borrow_mut(|tape| {
        tape.operations.push(operation);
        TracedNumber(tape.inputs + tape.operations.len() - 1)
    })
}

impl sealed::Sealed for TracedNumber {}

impl Number for TracedNumber {
    fn of(number: f64) -> Self {
        let index = TAPE.with_borrow_mut(|tape| {
            tape.numbers.push(number);
            tape.numbers.len() - 1
        });
        record(Operation::Number(index))
    }

    fn sqrt(self) -> Self {
        record(Operation::Sqrt(self.0))
    }

    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        record(Operation::IfLess(self.0, other.0, then.0, otherwise.0))
    }
}

macro_rules! binary {
    ($operation:ident, $method:ident) => {
        impl $operation for TracedNumber {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                record(Operation::$operation(self.0, other.0))
            }
        }
    };
}

binary!(Add, add);
binary!(Sub, sub);
binary!(Mul, mul);
binary!(Div, div);
