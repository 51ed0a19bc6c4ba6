//! The way from the weights of a training to those of the file.

use anyhow::{Result, ensure};
use backburn::optim::AdamWConfig;
use backburn::{FusedOptimizer, MemoryEstimate, Plan};
use burn::tensor::{DType, FloatDType};
use peak_alloc::PeakAlloc;

use crate::decoder::Decoder;
use crate::method::Method;
use crate::options::Options;

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
            (DType::BF16, DType::F32) if has_low_bits(options, plan) => Self::LowBits,
            (DType::BF16, DType::F32) => Self::Nothing,
            _ if weights == dtype => Self::Nothing,
            _ => Self::Rounding,
        }
    }

    /// Returns an error if the conversion of the `base` weights of a planned training takes more than its budget.
    pub fn check(
        options: &Options,
        plan: Option<&Plan<AdamWConfig>>,
        fused: &FusedOptimizer<Decoder>,
        base: u64,
        dtype: DType,
        bytes: &PeakAlloc,
    ) -> Result<()> {
        let Some(plan) = plan else {
            return Ok(());
        };
        let base = base as usize;
        let states = || MemoryEstimate::new(&fused.model(), &plan.optimizer.init()).optimizer_state;
        let held = bytes.current_usage();
        let (needed, advice) = match Self::of(options, Some(plan), dtype) {
            Self::LowBits => (held + states() + 4 * base, "write with `--dtype bf16`"),
            // Weights in f32 are rounded in their place.
            Self::Rounding if weights(options, Some(plan)) == FloatDType::BF16 => {
                (held + 2 * base, "write with `--dtype bf16`")
            }
            // The weights of other adapters are replaced one after the other.
            Self::Merge if options.method != Method::Lora => {
                (held + states() + 4 * base, "leave out `--merge`")
            }
            _ => return Ok(()),
        };
        ensure!(
            needed <= plan.budget,
            "the training fits, but to write its result in f32 takes about {needed} bytes, and `--fit` has {}: {advice}, or raise it",
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
fn has_low_bits(options: &Options, plan: Option<&Plan<AdamWConfig>>) -> bool {
    let optimizer = plan.map_or_else(|| options.optimizer(), |plan| plan.optimizer.clone());
    let formats = serde_json::to_value(optimizer).expect("a config is JSON");
    formats["weight_format"] == "Split24"
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
