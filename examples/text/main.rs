//! Trains a language model, a mixture of experts, and shows which size and which batch fit a budget of memory with which
//! technique.
//!
//! ```sh
//! cargo run --release --example text                      # learns plays of Shakespeare, and makes up a scene
//! cargo run --release --example text -- --save run --stop 200 # half of the steps; --resume run makes the others
//! cargo run --release --example text -- --vocabulary gpt2 # with the tokens of GPT-2
//! cargo run --release --example text -- --budget 300      # the largest batch by technique, in MB
//! cargo run --release --example text -- --within 150      # no more layers recomputed than that takes
//! cargo run --release --example text -- --states 8        # optimizer states in 8 bits
//! cargo run --release --example text -- --fine-tune       # full fine-tuning and LoRA, side by side
//! ```

#[path = "../shared/backend.rs"]
mod backend;
mod bigram;
mod budget;
mod checkpoint;
mod fine_tune;
#[path = "../shared/formats.rs"]
mod formats;
mod model;
#[path = "../shared/offload.rs"]
mod offload;
mod options;
mod sample;
mod technique;
mod text;
mod tokens;
mod train;
mod trainer;
mod within;

use anyhow::{Result, ensure};
use backburn::memory::{RecordingAllocator, keep_pages};
use backburn::{GradientCheckpointingConfig, MemoryEstimate};
use clap::Parser;
use peak_alloc::PeakAlloc;

use checkpoint::Training;
use options::Options;
use text::Text;
use train::HeldOut;

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// Tokens of a sample.
const SAMPLE: usize = 400;

fn main() -> Result<()> {
    // What a step has freed is there for the next one.
    keep_pages();
    // Before the first tensor on a GPU: with this setting its memory pools can use what is released.
    #[cfg(feature = "cubecl")]
    backburn::memory::match_pool_sizes()?;
    let options = Options::parse();
    let vocabulary = options.vocabulary;
    let config = options.config()?;
    if options.fine_tune {
        return fine_tune::compare(&options, &config, &BYTES);
    }
    let whole = options.read()?;
    let cut = || Text::new(&whole, vocabulary, config.context, options.seed);
    let mut text = cut()?;
    if let Some(budget) = options.budget {
        let budget = budget.saturating_mul(1_000_000);
        budget::print(&config, &mut text, budget, options.formats, &BYTES);
        return Ok(());
    }
    if let Some(folder) = &options.save {
        checkpoint::check(folder)?;
    }

    let place = options.place()?;
    let technique = options.technique;
    let device = technique.device(place);
    let mut course = options.course(&config);
    let checkpointing = match options.within {
        Some(budget) => {
            // Of a text of its own: the training begins with the first batch.
            let batch = cut()?.batch(course.batch, &device);
            let budget = budget.saturating_mul(1_000_000);
            let config = technique.applied_to(&config);
            within::choose(&config, budget, options.formats, &batch)?
        }
        None => GradientCheckpointingConfig::new(),
    };
    device.seed(options.seed);
    let mut trainer = technique.start(&config, checkpointing, place);
    let training = Training {
        config: technique.applied_to(&config),
        vocabulary,
        formats: options.formats,
        tokens: text.len(),
        checksum: text.checksum(),
        seed: options.seed,
        batch: course.batch,
        steps: course.steps,
        learning_rate: course.learning_rate,
    };
    if let Some(folder) = &options.resume {
        (trainer, course.done) = checkpoint::resume(folder, trainer, &training)?;
        ensure!(
            course.done < course.stop,
            "the checkpoint in {} has made {} steps already: stop later, with `--stop`",
            folder.display(),
            course.done
        );
        text.skip(course.done, course.batch);
    }
    println!(
        "{}",
        MemoryEstimate::new(&trainer.model(), &technique::optimizer(options.formats))
    );
    let (first, last) = train::train(&mut trainer, &mut text, course, &device, &BYTES)?;
    println!("loss {first:.3} at first, {last:.3} at last");
    if options.within.is_none() {
        // A recording leaves its log behind.
        println!("peak {:.0} MB", BYTES.peak_usage() as f64 / 1e6);
    }
    if let Some(folder) = &options.save {
        ensure!(
            last.is_finite(),
            "the training has diverged, and was not saved: try a smaller `--learning-rate`"
        );
        checkpoint::save(folder, &trainer, &training, course.stop)?;
        println!("saved in {}", folder.display());
    }

    let model = trainer.valid();
    let size = config.vocabulary;
    HeldOut::measure(&model, &text, size, course.batch, &device).print();
    let made_up = sample::sample(&model, vocabulary, "\n", SAMPLE, config.context, &device)?;
    println!("\n{}", made_up.trim());
    Ok(())
}
