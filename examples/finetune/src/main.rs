//! Fine-tunes a language model from the files of Hugging Face's `transformers`, and writes it back.
//!
//! ```sh
//! cargo run --release -p finetune -- --model DIR --data FILE --output OUT            # all weights
//! cargo run --release -p finetune -- --model DIR --data FILE --output OUT --fit 6GB  # within 6 GB
//! cargo run --release -p finetune -- --model DIR --data FILE --output OUT --method qlora4
//! ```

use anyhow::Result;
use backburn::memory::{RecordingAllocator, keep_pages};
use clap::Parser;
use peak_alloc::PeakAlloc;

use finetune::options::Options;
use finetune::run::run;
use finetune::signals::Signals;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

fn main() -> Result<()> {
    // Keeps freed pages for the next step.
    keep_pages();
    // Before the first tensor on a GPU: with this setting its memory pools can use what is released.
    #[cfg(feature = "cubecl")]
    backburn::memory::match_pool_sizes()?;
    let options = Options::parse();
    let signals = Signals::handle()?;
    let ended = run(&options, &signals.stop, &BYTES);
    if let (Ok(_), Some(code)) = (&ended, signals.exit_code()) {
        std::process::exit(code);
    }
    ended.map(|_| ())
}
