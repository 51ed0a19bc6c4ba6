//! Fine-tunes a language model from the files of Hugging Face's `transformers`, and writes it back.
//!
//! ```sh
//! cargo run --release -p finetune -- --model DIR --data FILE --output OUT            # all weights
//! cargo run --release -p finetune -- --model DIR --data FILE --output OUT --fit 6GB  # within 6 GB
//! cargo run --release -p finetune -- --model DIR --data FILE --output OUT --method qlora4
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use backburn::memory::{RecordingAllocator, keep_pages};
use clap::Parser;
use peak_alloc::PeakAlloc;

use finetune::options::Options;
use finetune::run::run;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

static STOP: AtomicBool = AtomicBool::new(false);

/// The exit code of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

fn main() -> Result<()> {
    // Keeps freed pages for the next step.
    keep_pages();
    // Before the first tensor on a GPU: with this setting its memory pools can use what is released.
    #[cfg(feature = "cubecl")]
    backburn::memory::match_pool_sizes()?;
    let options = Options::parse();
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        eprintln!(
            "stopping after this step, with a checkpoint; Ctrl-C again ends at once, without one"
        );
    })
    .context("Ctrl-C can't be handled")?;
    run(&options, &STOP, &BYTES)?;
    Ok(())
}
