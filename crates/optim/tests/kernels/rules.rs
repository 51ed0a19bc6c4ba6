use super::super::super::format::SquareRootCode;
use super::super::super::rule::{Adam, AdamW, Cautious, Lion, Moments, Momentum, Sgd};
use super::super::Rule;

/// Returns rules with the square-root codes of their states.
pub(super) fn rules() -> Vec<(Rule, &'static [SquareRootCode])> {
    const MOMENTS: &[SquareRootCode] = &[SquareRootCode::Signed, SquareRootCode::Positive];
    let moments = || Moments {
        beta_1: 0.9,
        beta_2: 0.999,
        complement_1: 0.1,
        complement_2: 0.001,
    };
    let adamw = AdamW {
        moments: moments(),
        learning_rate: 0.01,
        decay: 0.99,
        correction_1: 0.3,
        correction_2: 0.01,
        epsilon: 1e-5,
    };
    let cautious = Cautious(AdamW {
        moments: moments(),
        learning_rate: 0.01,
        decay: 0.01,
        correction_1: 0.3,
        correction_2: 0.01,
        epsilon: 1e-5,
    });
    let adam = Adam {
        moments: moments(),
        learning_rate: 0.01,
        penalty: Some(0.1),
        correction: 0.3,
        epsilon: 1e-5,
    };
    let lion = Lion {
        beta_1: 0.9,
        beta_2: 0.99,
        complement_1: 0.1,
        complement_2: 0.01,
        learning_rate: 0.01,
        decay: 0.99,
    };
    let sgd = Sgd {
        learning_rate: 0.01,
        penalty: None,
        momentum: Momentum {
            factor: 0.9,
            rest: 0.5,
            nesterov: true,
        },
    };
    vec![
        (Rule::new::<2>(adamw), MOMENTS),
        (Rule::new::<2>(cautious), MOMENTS),
        // AMSGrad.
        (
            Rule::new::<3>(adam),
            &[
                SquareRootCode::Signed,
                SquareRootCode::Positive,
                SquareRootCode::Positive,
            ],
        ),
        (Rule::new::<1>(lion), &[SquareRootCode::Signed]),
        (Rule::new::<1>(sgd.clone()), &[SquareRootCode::Signed]),
        (Rule::new::<0>(sgd), &[]),
    ]
}
