//! Trains a causal transformer on a text, and shows what batch fits a budget of memory with which
//! technique.
//!
//! ```sh
//! cargo run --release --example text                  # learns some sonnets
//! cargo run --release --example text -- --budget 300  # the table, in MB
//! cargo run --release --example text -- --within 150  # no more layers recomputed than that takes
//! cargo run --release --example text -- --states 8    # optimizer states in 8 bits
//! ```

#[path = "../shared/backend.rs"]
mod backend;
mod budget;
#[path = "../shared/formats.rs"]
mod formats;
mod model;
#[path = "../shared/offload.rs"]
mod offload;
mod technique;
mod text;
mod within;

use std::path::PathBuf;

use anyhow::Result;
use backburn::GradientCheckpointingConfig;
use backburn::memory::{RecordingAllocator, keep_pages};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use peak_alloc::PeakAlloc;

use backend::Backend;
use formats::Formats;
use model::TransformerConfig;
use offload::Waiting;
use technique::{Place, Technique};
use text::Text;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// Trains a causal transformer on a text, byte by byte.
#[derive(Parser, Clone, Debug)]
struct Options {
    /// A plain text file, instead of some sonnets of Shakespeare.
    #[arg(long)]
    text: Option<PathBuf>,

    /// How to train.
    #[arg(long, value_enum, default_value_t = Technique::Block)]
    technique: Technique,

    /// Where to train.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    device: Backend,

    /// What waits in host memory while the device computes.
    #[arg(long, value_enum, conflicts_with_all = ["budget", "within"])]
    offload: Option<Waiting>,

    #[command(flatten)]
    formats: Formats,

    /// Bytes that the model sees at once.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    context: u16,

    /// Pieces of text per step.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: u16,

    /// Number of steps.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,

    /// Print the largest batch that fits so many MB, by technique, instead of training.
    #[arg(long, value_name = "MB", conflicts_with = "device")]
    budget: Option<usize>,

    /// Run no more layers twice than it takes to stay within so many MB.
    #[arg(long, value_name = "MB", conflicts_with_all = ["technique", "budget", "device"])]
    within: Option<usize>,

    /// Seed of the weights, the dropout and the pieces.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

const LEARNING_RATE: f64 = 1e-3;

fn main() -> Result<()> {
    // What a step has freed is there for the next one.
    keep_pages();
    // Before the first tensor on a GPU: with this setting its memory pools can use what is released.
    #[cfg(feature = "cubecl")]
    backburn::memory::match_pool_sizes()?;
    let options = Options::parse();
    let context = usize::from(options.context);
    let config = TransformerConfig::new(context);
    let mut text = Text::read(options.text.as_deref(), context, options.seed)?;
    if let Some(budget) = options.budget {
        budget::print(&config, &mut text, budget * 1_000_000, &BYTES);
        return Ok(());
    }

    if let Some(waiting) = options.offload {
        waiting.check(options.device)?;
    }
    let place = Place {
        backend: options.device,
        offload: options.offload,
        formats: options.formats,
    };
    let device = options.technique.device(place);
    let checkpointing = match options.within {
        Some(budget) => {
            let batch = text.batch(options.batch_size.into(), context, &device);
            within::choose(&config, budget * 1_000_000, &batch)?
        }
        None => GradientCheckpointingConfig::new(),
    };
    device.seed(options.seed);
    let mut step = options.technique.start(&config, checkpointing, place);
    let style = ProgressStyle::with_template("step {pos}/{len} {msg} {elapsed}")?;
    let progress = ProgressBar::new(options.steps.into()).with_style(style);
    let (mut recent, mut first) = (f64::NAN, f64::NAN);
    for _ in 0..options.steps {
        let batch = text.batch(options.batch_size.into(), context, &device);
        let loss = step(batch, LEARNING_RATE).into_scalar::<f64>() / std::f64::consts::LN_2;
        first = if first.is_nan() { loss } else { first };
        recent = if recent.is_nan() {
            loss
        } else {
            0.9 * recent + 0.1 * loss
        };
        progress.set_message(format!("{recent:.2} bits per byte"));
        progress.inc(1);
    }
    progress.finish();
    println!("{first:.2} bits per byte at first, {recent:.2} at last");
    if options.within.is_none() {
        // A recording leaves its log behind.
        println!("peak {:.0} MB", BYTES.peak_usage() as f64 / 1e6);
    }
    Ok(())
}
