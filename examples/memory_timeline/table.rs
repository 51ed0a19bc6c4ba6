//! Table of the recorded timelines.

use std::path::Path;

use anyhow::{Context, Result};
use backburn::memory::MemoryTimeline;
use burn::prelude::*;
use clap::ValueEnum;

use crate::Variant;
use crate::model::VitConfig;

/// Reads the timelines in `folder`, with the names of their variants.
pub fn read(folder: &Path) -> Result<Vec<(String, MemoryTimeline)>> {
    let variants = Variant::value_variants().iter().map(|variant| {
        let file = folder.join(variant.name()).with_extension("json");
        let context = || format!("{} can't be read", file.display());
        let text = std::fs::read_to_string(&file).with_context(context)?;
        let timeline = serde_json::from_str(&text).with_context(context)?;
        Ok((variant.name(), timeline))
    });
    variants.collect()
}

/// Prints the peaks in bytes and in multiples of the parameters' bytes (P).
pub fn print(config: &VitConfig, timelines: &[(String, MemoryTimeline)]) {
    let parameters = config.init(&Device::flex()).num_params();
    let bytes = parameters * size_of::<f32>();
    println!(
        "\n{parameters} parameters, P = {:.1} MB",
        bytes as f64 / 1e6
    );
    println!(
        "{:<22}{:>12}{:>8}{:>12}{:>8}{:>8}{:>8}  at the peak",
        "", "peak (MB)", "/ P", "parameters", "grads", "state", "rest"
    );
    for (name, timeline) in timelines {
        let peak = timeline.peak();
        let multiple = |part: usize| part as f64 / bytes as f64;
        println!(
            "{name:<22}{:>12.1}{:>8.2}{:>12.2}{:>8.2}{:>8.2}{:>8.2}  {}",
            peak.bytes.total() as f64 / 1e6,
            multiple(peak.bytes.total()),
            multiple(peak.bytes.parameters),
            multiple(peak.bytes.gradients),
            multiple(peak.bytes.optimizer_state),
            multiple(peak.bytes.rest),
            timeline.phase(peak)
        );
        if timeline.lost > 0 {
            println!("{:<22}{} events did not fit in the log", "", timeline.lost);
        }
    }
}
