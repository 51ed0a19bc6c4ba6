//! The experiment of PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass". Records three
//! steps of ViT-L/16 with Adam on one generated image of 224 x 224: stock, fused, and fused with gradient checkpointing.
//!
//! ```sh
//! cargo run --release -p memory_timeline
//! cargo run --release -p memory_timeline -- --preset vit-b-16
//! ```
//!
//! Each variant runs in a separate process and writes its timeline as JSON to the output folder. A table and two pictures
//! compare them.

#[path = "../vit/model.rs"]
mod model;
#[path = "../vit/preset.rs"]
mod preset;
mod run;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use backburn::memory::{MemoryTimeline, RecordingAllocator, keep_pages, plot};
use clap::{Parser, ValueEnum};

use preset::Preset;

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

/// Records the memory of training steps, stock and fused, and compares them.
#[derive(Parser, Debug)]
struct Options {
    /// Size of the vision transformer.
    #[arg(long, value_enum, default_value_t = Preset::VitL16)]
    preset: Preset,

    /// Training steps of each variant.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    steps: u8,

    /// Folder for the timelines.
    #[arg(long, default_value = "runs/memory_timeline")]
    output: PathBuf,

    /// Record only this variant, in this process.
    #[arg(long, value_enum)]
    only: Option<Variant>,
}

/// Variant of the training steps.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Stock Burn.
    Stock,
    /// The optimizer fused into the backward pass.
    Fused,
    /// Fused, with Burn's `gradient_checkpointing()`.
    FusedGradientCheckpointing,
}

impl Variant {
    /// Returns the name on the command line and of the files.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_string())
    }
}

fn main() -> ExitCode {
    match compare(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<()> {
    let folder = &options.output;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("folder {} can't be written", folder.display()))?;
    let config = options.preset.config();
    if let Some(variant) = options.only {
        // Every variant needs the same memory and less time.
        keep_pages();
        let timeline = run::record(&config, variant, options.steps)?;
        let file = folder.join(variant.name());
        timeline.save_json(file.with_extension("json"))?;
        return Ok(());
    }

    // A process each, so that the allocator starts empty.
    for variant in Variant::value_variants() {
        let mut process = Command::new(std::env::current_exe()?);
        let preset = options.preset.to_possible_value();
        process.arg("--preset");
        process.arg(preset.context("a preset has a name")?.get_name());
        process.args([
            "--steps",
            &options.steps.to_string(),
            "--only",
            &variant.name(),
        ]);
        let status = process.arg("--output").arg(folder).status()?;
        ensure!(status.success(), "the run `{}` failed", variant.name());
    }
    let timelines = table::read(folder)?;
    table::print(&config, &timelines);

    sheet(folder, &timelines, ["stock", "fused"])?;
    sheet(
        folder,
        &timelines,
        ["fused", "fused-gradient-checkpointing"],
    )?;
    println!(
        "timelines (JSON) and pictures (SVG, PNG) in {}",
        folder.display()
    );
    Ok(())
}

/// Draws two runs on one sheet.
fn sheet(folder: &Path, timelines: &[(String, MemoryTimeline)], runs: [&str; 2]) -> Result<()> {
    let chosen = timelines
        .iter()
        .filter(|(name, _)| runs.contains(&name.as_str()));
    let chosen: Vec<_> = chosen
        .map(|(name, timeline)| (name.as_str(), timeline))
        .collect();
    let file = folder.join(runs.join("-and-"));
    plot::save_svg(file.with_extension("svg"), &chosen)?;
    plot::save_png(file.with_extension("png"), &chosen)?;
    Ok(())
}
