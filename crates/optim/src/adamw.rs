use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;

use super::element_wise::{AccumulateInState, ElementState, ElementWise, refusal_of_clipping};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::moments::{Moments, refusal_of_epsilon};
use super::rule::{Number, Rule, Step, UpdateRule};

/// Configuration of [`AdamW`]: the fields and defaults of Burn's
/// [`AdamWConfig`](burn::optim::AdamWConfig).
#[derive(Config, Debug)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Term added to the root of the second moment, for numerical stability.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Decoupled weight decay.
    #[config(default = 1e-4)]
    weight_decay: f32,
    /// Applies the decay only to elements where it does not oppose the update.
    #[config(default = false)]
    cautious_weight_decay: bool,
    /// Enables the AMSGrad variant.
    #[config(default = false)]
    amsgrad: bool,
    /// Format of the moments. The maximum of AMSGrad, and the second moment stored with it, always have `Full` format.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// Format of weights in bf16, which sets their extra precision.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
    /// Clipping of each parameter's gradient.
    pub(super) grad_clipping: Option<GradientClippingConfig>,
}

/// AdamW in a single pass.
///
/// Computes what Burn's [`AdamW`](burn::optim::AdamW) does:
/// [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101), with cautious weight decay
/// ([2025](https://arxiv.org/abs/2510.12402)) and the AMSGrad variant of
/// [Reddi et al., 2018](https://openreview.net/forum?id=ryQu7f-RZ).
pub type AdamW = ElementWiseOptimizer<AdamWConfig>;

element_wise_config!(AdamWConfig, grad_clipping);

impl ElementWise for AdamWConfig {
    const STATES: &'static [ElementState] = &Moments::STATES;
    const TIME: Option<&'static str> = Some("momentum.time");

    /// Computes hyperparameters in the same precision as Burn.
    fn rule(&self, step: Step) -> Rule {
        let rate = step.learning_rate * f64::from(self.weight_decay);
        let is_cautious = self.cautious_weight_decay && rate != 0.0;
        let rule = AdamWRule {
            moments: Moments::new(step, self.beta_1, self.beta_2),
            learning_rate: step.learning_rate,
            decay: if is_cautious { rate } else { 1.0 - rate },
            correction_1: (1.0 - self.beta_1.powi(step.time)).into(),
            correction_2: (1.0 - self.beta_2.powi(step.time)).into(),
            epsilon: self.epsilon.into(),
        };
        match (is_cautious, self.amsgrad) {
            (false, false) => Rule::built_in::<2>(rule),
            (false, true) => Rule::built_in::<3>(rule),
            (true, false) => Rule::built_in::<2>(Cautious(rule)),
            (true, true) => Rule::built_in::<3>(Cautious(rule)),
        }
    }
}

impl AccumulateInState for AdamWConfig {
    fn refusal(&self) -> Option<&'static str> {
        let cautious = self.cautious_weight_decay;
        let cautious =
            cautious.then_some("cautious weight decay needs the update of the whole batch: switch it off, or accumulate in a buffer");
        cautious
            .or(refusal_of_epsilon(self.epsilon))
            .or(refusal_of_clipping(&self.grad_clipping))
    }
}

/// The hyperparameters of a step of AdamW, for gradient g, moments m and v, and parameter θ:
///
/// ```text
/// m ← β₁ m + (1 - β₁) g
/// v ← β₂ v + (1 - β₂) g²
/// θ ← (1 - ηλ) θ - η m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)
/// ```
#[derive(Clone, Debug)]
struct AdamWRule {
    moments: Moments,
    learning_rate: f64,
    /// Factor of the parameter; with [`Cautious`], the fraction of it that is subtracted.
    decay: f64,
    /// Divisor of the first moment that corrects its bias.
    correction_1: f64,
    correction_2: f64,
    epsilon: f64,
}

impl AdamWRule {
    /// Updates the moments. Returns the first, and the change of the parameter by the learning rate.
    #[inline(always)]
    fn delta<N: Number, const S: usize>(&self, gradient: N, states: &mut [N; S]) -> [N; 2] {
        let [moment_1, moment_2] = self.moments.update(gradient, states);
        let corrected_1 = moment_1 / N::of(self.correction_1);
        let corrected_2 = moment_2 / N::of(self.correction_2);
        let delta = corrected_1 / (corrected_2.sqrt() + N::of(self.epsilon));
        [moment_1, delta]
    }
}

impl<const S: usize> UpdateRule<S> for AdamWRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let [_, delta] = self.delta(gradient, &mut states);
        let decayed = parameter * N::of(self.decay);
        (decayed - delta * N::of(self.learning_rate), states)
    }
}

/// AdamW that decays only elements where the decay does not oppose the update.
#[derive(Clone, Debug)]
struct Cautious(AdamWRule);

impl<const S: usize> UpdateRule<S> for Cautious {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let [moment_1, delta] = self.0.delta(gradient, &mut states);
        let decay = parameter * N::of(self.0.decay);
        let zero = N::of(0.0);
        let if_negative = moment_1.if_less(zero, decay, zero);
        let if_positive = moment_1.if_less(zero, zero, decay);
        let decayed = parameter - parameter.if_less(zero, if_negative, if_positive);
        (decayed - delta * N::of(self.0.learning_rate), states)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::optim as stock;

    use super::*;
    use crate::stock::assert_equal_steps;

    #[test]
    fn adamw_equals_that_of_burn() {
        assert_equal_steps(stock::AdamWConfig::new().init(), AdamWConfig::new().init());
        assert_equal_steps(
            stock::AdamWConfig::new()
                .with_cautious_weight_decay(true)
                .init(),
            AdamWConfig::new().with_cautious_weight_decay(true).init(),
        );
        assert_equal_steps(
            stock::AdamWConfig::new().with_amsgrad(true).init(),
            AdamWConfig::new().with_amsgrad(true).init(),
        );
    }
}
