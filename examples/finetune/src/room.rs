//! Room on the disk for the output.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::DType;

use crate::counts::Counts;
use crate::options::{Options, States, Weights};
use crate::save_every::SaveEvery;

/// Returns an error if the disk has no room for the result in `dtype` and the checkpoints of `steps` steps.
pub fn check(options: &Options, counts: Counts, dtype: DType, steps: usize) -> Result<()> {
    let folder = &options.output;
    let free = fs4::available_space(folder);
    let free =
        free.with_context(|| format!("the free space of {} is unknown", folder.display()))?;
    let needed = needed(options, counts, dtype, steps);
    let needed = needed.saturating_sub(size(&folder.join("checkpoints")));
    ensure!(
        needed <= free,
        "{} has {:.2} GB free, and the result and the checkpoints take up to {:.2} GB: free space, or lower `--keep-last`, which is {}",
        folder.display(),
        free as f64 / 1e9,
        needed as f64 / 1e9,
        options.keep_last
    );
    Ok(())
}

/// Returns the most bytes of the output.
fn needed(options: &Options, counts: Counts, dtype: DType, steps: usize) -> u64 {
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
    let checkpoint = counts.trained.saturating_mul(bytes_per_weight(options));
    checkpoint
        .saturating_mul(checkpoints)
        .saturating_add(result)
}

/// Returns the bytes of a trained weight and its states in a checkpoint, rounded up.
fn bytes_per_weight(options: &Options) -> u64 {
    let states = match options.states {
        None => 8,
        Some(States::Eight) => 3,
        Some(States::Four) => 2,
    };
    let weight = match options.weights {
        Weights::F32 => 4,
        Weights::Bf16 => 3,
        Weights::Stochastic => 2,
    };
    weight + states
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
