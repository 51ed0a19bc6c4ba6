//! Formulas from somewhere else: as numbers that can be sent, and run as they are.

use super::{Number, Operation, Program, Traced, UpdateRule};

/// More than any formula has.
const MOST: usize = 1024;

impl Traced {
    /// What the formula does, in words, and its numbers.
    pub(crate) fn into_words(self) -> (Vec<u64>, Vec<f64>) {
        let Program {
            operations,
            results,
        } = self.program;
        let operations = operations.into_iter().flat_map(Operation::words);
        let words = results
            .iter()
            .map(|result| *result as u64)
            .chain(operations);
        (words.collect(), self.numbers)
    }

    /// The formula of these words and numbers, with so many states; none if they are those of no formula.
    pub(crate) fn of_words(states: usize, words: &[u64], numbers: Vec<f64>) -> Option<Self> {
        let (results, operations) = words.split_at_checked(1 + states)?;
        let (operations, []) = operations.as_chunks::<5>() else {
            return None;
        };
        if operations.len() > MOST {
            return None;
        }
        let mut values = 2 + states;
        let mut read = Vec::with_capacity(operations.len());
        for words in operations {
            read.push(Operation::of_words(*words, values, numbers.len())?);
            values += 1;
        }
        let results = results.iter().map(|result| place(*result, values));
        let program = Program {
            operations: read,
            results: results.collect::<Option<_>>()?,
        };
        Some(Self { program, numbers })
    }
}

impl Operation {
    fn words(self) -> [u64; 5] {
        let words = match self {
            Self::Number(index) => [0, index, 0, 0, 0],
            Self::Add(a, b) => [1, a, b, 0, 0],
            Self::Sub(a, b) => [2, a, b, 0, 0],
            Self::Mul(a, b) => [3, a, b, 0, 0],
            Self::Div(a, b) => [4, a, b, 0, 0],
            Self::Sqrt(a) => [5, a, 0, 0, 0],
            Self::IfLess(a, b, then, otherwise) => [6, a, b, then, otherwise],
        };
        words.map(|word| word as u64)
    }

    /// That of these words, if its operands are among so many values and numbers.
    fn of_words([kind, words @ ..]: [u64; 5], values: usize, numbers: usize) -> Option<Self> {
        if kind == 0 {
            return place(words[0], numbers).map(Self::Number);
        }
        let places = words.map(|word| place(word, values));
        let [Some(a), Some(b), Some(c), Some(d)] = places else {
            return None;
        };
        Some(match kind {
            1 => Self::Add(a, b),
            2 => Self::Sub(a, b),
            3 => Self::Mul(a, b),
            4 => Self::Div(a, b),
            5 => Self::Sqrt(a),
            6 => Self::IfLess(a, b, c, d),
            _ => return None,
        })
    }
}

/// A place among so many.
fn place(word: u64, places: usize) -> Option<usize> {
    let place = usize::try_from(word).ok()?;
    (place < places).then_some(place)
}

/// A plain loop: closures are compiled for any processor.
macro_rules! each {
    ($lane:ident, $value:ident, $result:expr) => {
        for $lane in 0..L {
            $value[$lane] = $result;
        }
    };
}

/// Some elements at a time, one operation after the other.
impl<const S: usize> UpdateRule<S> for Traced {
    fn update<N: Number>(&self, parameter: N, gradient: N, states: [N; S]) -> (N, [N; S]) {
        let (mut parameters, mut states) = ([parameter], states.map(|state| [state]));
        self.update_lanes(&mut parameters, &[gradient], &mut states);
        (parameters[0], states.map(|[state]| state))
    }

    #[inline(always)]
    fn update_lanes<N: Number, const L: usize>(
        &self,
        parameters: &mut [N; L],
        gradients: &[N; L],
        states: &mut [[N; L]; S],
    ) {
        let mut values = Vec::with_capacity(2 + S + self.program.operations.len());
        values.extend([*parameters, *gradients]);
        values.extend(*states);
        for operation in &self.program.operations {
            let mut value = *parameters;
            match *operation {
                Operation::Number(index) => value = [N::of(self.numbers[index]); L],
                Operation::Add(a, b) => each!(lane, value, values[a][lane] + values[b][lane]),
                Operation::Sub(a, b) => each!(lane, value, values[a][lane] - values[b][lane]),
                Operation::Mul(a, b) => each!(lane, value, values[a][lane] * values[b][lane]),
                Operation::Div(a, b) => each!(lane, value, values[a][lane] / values[b][lane]),
                Operation::Sqrt(a) => each!(lane, value, values[a][lane].sqrt()),
                Operation::IfLess(a, b, then, otherwise) => {
                    let [a, b, then, otherwise] =
                        [a, b, then, otherwise].map(|place| values[place]);
                    each!(
                        lane,
                        value,
                        a[lane].if_less(b[lane], then[lane], otherwise[lane])
                    );
                }
            }
            values.push(value);
        }
        let [parameter, after @ ..] = &self.program.results[..] else {
            unreachable!("a step has a parameter");
        };
        *parameters = values[*parameter];
        for (state, after) in states.iter_mut().zip(after) {
            *state = values[*after];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AdamW, Cautious, Lion, Moments};
    use super::*;

    fn assert_comes_back<const S: usize>(rule: impl UpdateRule<S>) {
        let traced = Traced::of(&rule);
        let (words, numbers) = traced.clone().into_words();
        let again = Traced::of_words(S, &words, numbers.clone());
        assert_eq!(again.as_ref(), Some(&traced));
        let states = std::array::from_fn(|state| 0.5 + state as f32);
        for (parameter, gradient) in [(1.5_f32, -0.3_f32), (-1.5, 0.0), (0.0, 2.0)] {
            let found = traced.update(parameter, gradient, states);
            assert_eq!(found, rule.update(parameter, gradient, states));
        }
        // Neither fewer words nor numbers, nor values that are not there yet.
        for length in 0..words.len() {
            assert_eq!(Traced::of_words(S, &words[..length], numbers.clone()), None);
        }
        let fewer = numbers[..numbers.len() - 1].to_vec();
        assert_eq!(Traced::of_words(S, &words, fewer), None);
        let mut unknown = words.clone();
        unknown[2 + S] = u64::MAX;
        assert_eq!(Traced::of_words(S, &unknown, numbers), None);
    }

    #[test]
    fn a_formula_comes_back_from_its_words_and_computes_the_same() {
        let adamw = Cautious(AdamW {
            moments: Moments {
                beta_1: 0.9,
                beta_2: 0.999,
                rest_1: 0.1,
                rest_2: 0.001,
            },
            learning_rate: 0.1,
            decay: 0.01,
            correction_1: 0.3,
            correction_2: 0.01,
            epsilon: 1e-5,
        });
        assert_comes_back::<2>(adamw.clone());
        assert_comes_back::<3>(adamw);
        assert_comes_back::<1>(Lion {
            beta_1: 0.9,
            beta_2: 0.99,
            rest_1: 0.1,
            rest_2: 0.01,
            learning_rate: 1e-4,
            decay: 0.999,
        });
    }
}
