//! Conversion of the weights of a training to those of the file.

use anyhow::{Result, ensure};
use backburn::optim::AdamWConfig;
use backburn::{FusedOptimizer, MemoryEstimate, Plan};
use burn::tensor::{DType, FloatDType};
use serde_json::Value as Json;

use crate::counts::Counts;
use crate::decoder::Decoder;
use crate::method::Method;
use crate::options::Options;

/// Bytes for names, headers and buffers.
const SLACK: usize = 1 << 20;

/// The change of the weights when they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// The file has the numbers that were trained.
    Nothing,
    /// They are rounded, one tensor after the other, when the optimizer states are freed.
    Rounding,
    /// Weights in bf16 get their low bits from the optimizer states.
    LowBits,
    /// Adapters are added to the weights.
    Merge,
}

impl Conversion {
    /// Returns the conversion for a file in `dtype`, of a training that `plan` or the options describe.
    pub fn of(options: &Options, plan: Option<&Plan<AdamWConfig>>, dtype: DType) -> Self {
        if options.writes_adapters() {
            return Self::Nothing;
        }
        if options.merge {
            return Self::Merge;
        }
        let weights = DType::from(weights(options, plan));
        match (weights, dtype) {
            _ if weights == dtype => Self::Nothing,
            (DType::BF16, _) if has_low_bits(options, plan) => Self::LowBits,
            (DType::BF16, DType::F32) => Self::Nothing,
            _ => Self::Rounding,
        }
    }

    /// Returns an error if a planned training, which holds `held` bytes before its first step, takes more than its budget to write
    /// its result.
    pub fn check(
        options: &Options,
        plan: Option<&Plan<AdamWConfig>>,
        fused: &FusedOptimizer<Decoder>,
        counts: Counts,
        dtype: DType,
        held: usize,
    ) -> Result<()> {
        let has_budget = options.fit.is_some() && !options.writes_adapters();
        let Some(plan) = plan.filter(|_| has_budget) else {
            return Ok(());
        };
        let [base, largest] = [counts.base, counts.largest].map(|weights| weights as usize);
        let states = || MemoryEstimate::new(&fused.model(), &plan.optimizer.init()).optimizer_state;
        let (converted, advice) = match Self::of(options, Some(plan), dtype) {
            // A plan for less may have smaller states.
            Self::Nothing => (states(), "lower it for another plan, or "),
            Self::LowBits => (states() + 4 * base, "write with `--dtype bf16`, or "),
            // The states are freed first, and weights in f32 are rounded in their place.
            Self::Rounding => match weights(options, Some(plan)) {
                FloatDType::BF16 => (2 * base, "write with `--dtype bf16`, or "),
                _ => (0, ""),
            },
            // Weights in f32 are replaced one after the other.
            Self::Merge if options.method == Method::Lora => (states(), "leave out `--merge`, or "),
            Self::Merge => (states() + 4 * base, "leave out `--merge`, or "),
        };
        // A tensor is copied to be written, and transposed or cast.
        let needed = held + converted + 2 * 4 * largest + SLACK;
        ensure!(
            needed <= plan.budget,
            "the training fits, but to write its result takes up to {needed} bytes, and `--fit` has {}: {advice}raise it",
            plan.budget
        );
        Ok(())
    }
}

/// Returns the type of the weights in a training.
pub fn weights(options: &Options, plan: Option<&Plan<AdamWConfig>>) -> FloatDType {
    let planned = plan.and_then(|plan| plan.weights);
    planned.unwrap_or(options.dtype())
}

/// Returns `true` if the optimizer states have more bits of the weights.
pub fn has_low_bits(options: &Options, plan: Option<&Plan<AdamWConfig>>) -> bool {
    optimizer(options, plan)["weight_format"] == "Split24"
}

/// Returns the config of the optimizer as JSON: its formats are private.
pub fn optimizer(options: &Options, plan: Option<&Plan<AdamWConfig>>) -> Json {
    let optimizer = plan.map_or_else(|| options.optimizer(), |plan| plan.optimizer.clone());
    serde_json::to_value(optimizer).expect("a config is JSON")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn conversion_is_that_of_options_and_file() {
        for (options, dtype, expected) in [
            ("--method full", DType::F32, Conversion::Nothing),
            ("--method full", DType::BF16, Conversion::Rounding),
            ("--weights bf16", DType::BF16, Conversion::Nothing),
            ("--weights bf16", DType::F32, Conversion::LowBits),
            ("--weights bf16", DType::F16, Conversion::LowBits),
            ("--weights stochastic", DType::BF16, Conversion::Nothing),
            ("--weights stochastic", DType::F32, Conversion::Nothing),
            ("--weights stochastic", DType::F16, Conversion::Rounding),
            ("--method lora", DType::BF16, Conversion::Nothing),
            ("--method qlora4 --merge", DType::F32, Conversion::Merge),
        ] {
            let line = format!("finetune --model m --data d --output o {options}");
            let parsed = Options::parse_from(line.split(' '));
            assert_eq!(Conversion::of(&parsed, None, dtype), expected, "{options}");
        }
    }
}
