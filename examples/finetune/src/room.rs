//! Room on the disk for the output.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use backburn::Plan;
use backburn::optim::AdamWConfig;
use burn::tensor::{DType, FloatDType};

use crate::conversion;
use crate::counts::Counts;
use crate::options::Options;
use crate::save_every::SaveEvery;

/// Returns an error if the disk has no room for the result in `dtype` and the checkpoints of `steps` steps.
pub fn check(
    options: &Options,
    plan: Option<&Plan<AdamWConfig>>,
    counts: Counts,
    dtype: DType,
    steps: usize,
) -> Result<()> {
    let folder = &options.output;
    let free = fs4::available_space(folder);
    let free =
        free.with_context(|| format!("the free space of {} is unknown", folder.display()))?;
    let needed = needed(options, plan, counts, dtype, steps);
    // Checkpoints beyond `--keep-last` are removed before the first step.
    let needed = needed.saturating_sub(size(&folder.join("checkpoints")));
    ensure!(
        needed <= free,
        "{} has {:.1} MB free, and the result and the checkpoints take up to {:.1} MB: free space{}",
        folder.display(),
        free as f64 / 1e6,
        needed as f64 / 1e6,
        match options.keep_last {
            1 => String::new(),
            count => format!(", or lower `--keep-last`, which is {count}"),
        }
    );
    Ok(())
}

/// Returns the most bytes of the output.
fn needed(
    options: &Options,
    plan: Option<&Plan<AdamWConfig>>,
    counts: Counts,
    dtype: DType,
    steps: usize,
) -> u64 {
    let result = match options.writes_adapters() {
        true => 4 * counts.trained,
        false => counts.base * dtype.size() as u64,
    };
    let saved = match options.save_every {
        SaveEvery::Steps(every) => steps.div_ceil(every),
        SaveEvery::Time(_) => steps,
    };
    // A checkpoint is complete before an older one is removed.
    let checkpoints = options.keep_last.min(saved) as u64 + 1;
    let best = u64::from(options.keep_best);
    let checkpoints = checkpoints.saturating_add(best);
    let checkpoint = counts
        .trained
        .saturating_mul(bytes_per_weight(options, plan));
    checkpoint
        .saturating_mul(checkpoints)
        .saturating_add(result)
}

/// Returns the bytes of a trained weight and its states in a checkpoint, rounded up.
fn bytes_per_weight(options: &Options, plan: Option<&Plan<AdamWConfig>>) -> u64 {
    let states = match conversion::optimizer(options, plan)["state_format"].as_str() {
        Some("Bits8") => 3,
        Some("Bits4") => 2,
        _ => 8,
    };
    let weight = match conversion::weights(options, plan) {
        FloatDType::BF16 => 2,
        _ => 4,
    };
    weight + u64::from(conversion::has_low_bits(options, plan)) + states
}

/// Returns the bytes of the files in `folder`, which need not exist.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use backburn::ModelKey;
    use clap::Parser;

    use super::*;

    fn parsed(options: &str) -> Options {
        let line = format!("finetune --model m --data d --output o {options}");
        Options::parse_from(line.split_whitespace())
    }

    #[test]
    fn checkpoint_bytes_are_those_of_options_or_plan() {
        for (formats, bytes) in [
            ("", 12),
            ("--states 8", 7),
            ("--weights bf16 --states 4", 5),
            ("--weights stochastic", 10),
        ] {
            let options = parsed(formats);
            let plan = Plan {
                config: options.fused(),
                optimizer: options.optimizer(),
                weights: Some(options.dtype()),
                batch: 1,
                accumulation: 1,
                budget: 0,
                device_bytes: 0,
                host_bytes: 0,
                model: ModelKey {
                    parameters: 0,
                    elements: 0,
                    hash: 0,
                },
                candidates: Vec::new(),
                taken: 0,
                notes: Vec::new(),
            };
            assert_eq!(bytes_per_weight(&options, None), bytes, "{formats}");
            let planned = bytes_per_weight(&parsed("--fit 6GB"), Some(&plan));
            assert_eq!(planned, bytes, "{formats}");
        }
    }
}
