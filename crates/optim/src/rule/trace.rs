//! A formula as a list of operations, for what does not run it as it is written: kernels of devices and
//! tensor operations.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Sub};

use super::UpdateRule;
use super::number::{Number, sealed};

/// An operation on values that are there: the parameter, the gradient, the states, then the results of the operations
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// The hyperparameter or constant of this index.
    Number(usize),
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    Div(usize, usize),
    Sqrt(usize),
    /// The third where the first is less than the second, else the fourth.
    IfLess(usize, usize, usize, usize),
}

/// What a formula does, whatever its numbers are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Program {
    pub(crate) operations: Vec<Operation>,
    /// Which values are the parameter and the states after the step.
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
    /// How many there are before the first operation.
    inputs: usize,
    operations: Vec<Operation>,
    numbers: Vec<f64>,
}

thread_local! {
    /// That of the formula that is traced on this thread.
    static TAPE: RefCell<Tape> = RefCell::default();
}

impl Traced {
    /// What `rule` does, by doing it.
    pub(crate) fn of<const S: usize>(rule: &impl UpdateRule<S>) -> Self {
        TAPE.set(Tape {
            inputs: 2 + S,
            ..Tape::default()
        });
        let states = std::array::from_fn(|state| Noted(2 + state));
        let (parameter, states) = rule.update(Noted(0), Noted(1), states);
        let Tape {
            operations,
            numbers,
            ..
        } = TAPE.take();
        let results = [parameter].into_iter().chain(states);
        let program = Program {
            operations,
            results: results.map(|Noted(value)| value).collect(),
        };
        Self { program, numbers }
    }
}

/// A number that notes what is done with it: which value it is.
#[derive(Clone, Copy)]
struct Noted(usize);

fn note(operation: Operation) -> Noted {
    TAPE.with_borrow_mut(|tape| {
        tape.operations.push(operation);
        Noted(tape.inputs + tape.operations.len() - 1)
    })
}

impl sealed::Sealed for Noted {}

impl Number for Noted {
    fn of(number: f64) -> Self {
        let index = TAPE.with_borrow_mut(|tape| {
            tape.numbers.push(number);
            tape.numbers.len() - 1
        });
        note(Operation::Number(index))
    }

    fn sqrt(self) -> Self {
        note(Operation::Sqrt(self.0))
    }

    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        note(Operation::IfLess(self.0, other.0, then.0, otherwise.0))
    }
}

macro_rules! binary {
    ($operation:ident, $method:ident) => {
        impl $operation for Noted {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                note(Operation::$operation(self.0, other.0))
            }
        }
    };
}

binary!(Add, add);
binary!(Sub, sub);
binary!(Mul, mul);
binary!(Div, div);
