use super::{Adam, AdamW, Lion, Moments, Rule, Sgd};

/// A rule as numbers, to be sent to where it is applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleNumbers {
    pub(crate) kind: u64,
    pub(crate) numbers: Vec<f64>,
}

/// What stands for a penalty that there is not.
const NONE: f64 = f64::NAN;

impl Rule {
    pub(crate) fn into_numbers(self) -> RuleNumbers {
        let (kind, numbers) = match self {
            Self::Adam(rule) => (0, {
                let penalty = rule.penalty.unwrap_or(NONE);
                let rest = [rule.learning_rate, penalty, rule.correction, rule.epsilon];
                [&rule.moments.numbers()[..], &rest].concat()
            }),
            Self::AdamW(rule) => (1, rule.numbers()),
            Self::CautiousAdamW(rule) => (2, rule.numbers()),
            Self::Lion(rule) => {
                let betas = [rule.beta_1, rule.beta_2, rule.rest_1, rule.rest_2];
                (3, [&betas[..], &[rule.learning_rate, rule.decay]].concat())
            }
            Self::Sgd(rule) => (4, {
                let penalty = rule.penalty.unwrap_or(NONE);
                let nesterov = f64::from(u8::from(rule.nesterov));
                vec![
                    rule.learning_rate,
                    penalty,
                    rule.momentum,
                    rule.rest,
                    nesterov,
                ]
            }),
        };
        RuleNumbers { kind, numbers }
    }

    /// The rule of these numbers; none if they are of no rule that this version knows.
    pub(crate) fn of_numbers(numbers: &RuleNumbers) -> Option<Self> {
        let penalty = |penalty: f64| (!penalty.is_nan()).then_some(penalty);
        Some(match (numbers.kind, &numbers.numbers[..]) {
            (0, &[a, b, c, d, learning_rate, l2, correction, epsilon]) => Self::Adam(Adam {
                moments: Moments::of_numbers([a, b, c, d]),
                learning_rate,
                penalty: penalty(l2),
                correction,
                epsilon,
            }),
            (1, numbers) => Self::AdamW(AdamW::of_numbers(numbers)?),
            (2, numbers) => Self::CautiousAdamW(AdamW::of_numbers(numbers)?),
            (3, &[beta_1, beta_2, rest_1, rest_2, learning_rate, decay]) => Self::Lion(Lion {
                beta_1,
                beta_2,
                rest_1,
                rest_2,
                learning_rate,
                decay,
            }),
            (4, &[learning_rate, l2, momentum, rest, nesterov]) => Self::Sgd(Sgd {
                learning_rate,
                penalty: penalty(l2),
                momentum,
                rest,
                nesterov: nesterov != 0.0,
            }),
            _ => return None,
        })
    }
}

impl Moments {
    fn numbers(&self) -> [f64; 4] {
        [self.beta_1, self.beta_2, self.rest_1, self.rest_2]
    }

    fn of_numbers([beta_1, beta_2, rest_1, rest_2]: [f64; 4]) -> Self {
        Self {
            beta_1,
            beta_2,
            rest_1,
            rest_2,
        }
    }
}

impl<const CAUTIOUS: bool> AdamW<CAUTIOUS> {
    fn numbers(&self) -> Vec<f64> {
        let rest = [
            self.learning_rate,
            self.decay,
            self.correction_1,
            self.correction_2,
            self.epsilon,
        ];
        [&self.moments.numbers()[..], &rest].concat()
    }

    fn of_numbers(numbers: &[f64]) -> Option<Self> {
        let &[
            a,
            b,
            c,
            d,
            learning_rate,
            decay,
            correction_1,
            correction_2,
            epsilon,
        ] = numbers
        else {
            return None;
        };
        Some(Self {
            moments: Moments::of_numbers([a, b, c, d]),
            learning_rate,
            decay,
            correction_1,
            correction_2,
            epsilon,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_comes_back_from_its_numbers() {
        let moments = Moments::new(0.9, 0.999);
        let adam = |penalty| Adam {
            moments,
            learning_rate: 1e-3,
            penalty,
            correction: 0.7,
            epsilon: 1e-8,
        };
        let sgd = |nesterov| Sgd {
            learning_rate: 0.1,
            penalty: None,
            momentum: 0.9,
            rest: 1.0,
            nesterov,
        };
        let lion = Lion {
            beta_1: 0.9,
            beta_2: 0.99,
            rest_1: 0.1,
            rest_2: 0.01,
            learning_rate: 1e-4,
            decay: 0.999,
        };
        let adamw = Rule::of_numbers(&RuleNumbers {
            kind: 2,
            numbers: (1..10).map(f64::from).collect(),
        });
        let rules = [
            Rule::Adam(adam(None)),
            Rule::Adam(adam(Some(0.01))),
            Rule::Lion(lion),
            Rule::Sgd(sgd(true)),
            Rule::Sgd(sgd(false)),
            adamw.expect("a cautious AdamW has nine numbers"),
        ];
        for rule in rules {
            let again = Rule::of_numbers(&rule.into_numbers());
            assert_eq!(format!("{:?}", Some(rule)), format!("{again:?}"));
        }
        let unknown = RuleNumbers {
            kind: 9,
            numbers: Vec::new(),
        };
        assert!(Rule::of_numbers(&unknown).is_none());
    }
}
