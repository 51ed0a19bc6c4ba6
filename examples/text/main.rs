//! Trains a language model (a mixture of experts) within a memory budget.
//!
//! ```sh
//! cargo run --release -p text                      # trains on plays of Shakespeare and generates a scene
//! cargo run --release -p text -- --save run --stop 200 # half of the steps; `--resume run` runs the rest
//! cargo run --release -p text -- --vocabulary gpt2 # with the tokens of GPT-2
//! cargo run --release -p text -- --fit 50MB        # with the first techniques that fit
//! cargo run --release -p text -- --states 8        # optimizer states in 8 bits
//! cargo run --release -p text -- --optimizer muon --ema 0.99 # Muon for matrices, and an average of the weights
//! cargo run --release -p text -- --fine-tune       # full fine-tuning, and LoRA on f32 and quantized weights
//! ```

use anyhow::{Result, ensure};
use backburn::MemoryEstimate;
use backburn::memory::{RecordingAllocator, keep_pages};
use clap::Parser;
use peak_alloc::PeakAlloc;

use text::checkpoint::{self, Training};
use text::options::Options;
use text::text::Text;
use text::train::HeldOut;
use text::{fine_tune, fit, sample, train};

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

/// Number of tokens of a sample.
const SAMPLE: usize = 400;

fn main() -> Result<()> {
    // Memory that a step frees stays in the process for the next one.
    keep_pages();
    // Before the first tensor on a GPU: the memory pools then reuse what is released.
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
    let mut schedule = options.schedule(&config);
    if let Some(folder) = &options.save {
        checkpoint::check(folder, options.resume.as_deref(), schedule.stop)?;
    }

    let place = options.place()?;
    let technique = options.technique;
    let device = technique.device(place);
    let plan = match (&options.resume, options.fit) {
        (Some(folder), budget) => checkpoint::plan(folder, budget, &device)?,
        // Planning draws batches from a separate text, so that the training starts with the first batch.
        (None, Some(budget)) => {
            let batch = cut()?.batch(schedule.batch, &device);
            let config = technique.applied_to(&config);
            Some(fit::plan(&config, budget, &batch, &device)?)
        }
        (None, None) => None,
    };
    ensure!(
        plan.is_none() || technique.can_be_planned() && options.offload.is_none(),
        "the training was planned: resume it without `--offload`, and with `--technique block` or `chunked`"
    );
    device.seed(options.seed);
    let mut trainer = match &plan {
        Some(plan) => technique.start_planned(&config, plan, place)?,
        None => technique.start(&config, place)?,
    };
    let training = Training {
        config: technique.applied_to(&config),
        vocabulary,
        formats: options.formats,
        optimizer: options.optimizer,
        ema: options.ema,
        tokens: text.tokens(),
        checksum: text.checksum(),
        seed: options.seed,
        batch: schedule.batch,
        steps: schedule.steps,
        learning_rate: schedule.learning_rate,
        plan,
    };
    if let Some(folder) = &options.resume {
        (trainer, schedule.done) = checkpoint::resume(folder, trainer, &training)?;
        ensure!(
            schedule.done < schedule.stop,
            "the checkpoint in {} has {} steps already, and needs no more: set a later `--stop`, up to `--steps`",
            folder.display(),
            schedule.done
        );
        text.skip(schedule.done, schedule.batch);
    }
    if training.plan.is_none() {
        let optimizer = place.optimizer.init(place.formats);
        println!("{}", MemoryEstimate::new(&trainer.model(), &optimizer));
    }
    let (first, last) = train::train(&mut trainer, &mut text, schedule, &device, &BYTES)?;
    println!("loss {first:.3} at the start, {last:.3} at the end");
    println!("peak {:.0} MB", BYTES.peak_usage() as f64 / 1e6);
    if let Some(plan) = &training.plan {
        println!("planned {:.0} MB", plan.device_bytes as f64 / 1e6);
    }
    if let Some(folder) = &options.save {
        ensure!(
            last.is_finite(),
            "the training diverged and was not saved: use a smaller `--learning-rate`"
        );
        checkpoint::save(folder, &trainer, &training, schedule.stop)?;
        println!("saved in {}", folder.display());
    }

    let model = trainer.valid(&device);
    let size = config.vocabulary;
    let batch = training.plan.map_or(schedule.batch, |plan| plan.batch);
    // At most the number of trained pieces, because a large model is slow.
    let pieces = HeldOut::PIECES.min(schedule.stop * schedule.batch);
    println!("measuring the loss of {pieces} held-out pieces");
    HeldOut::measure(&model, &text, size, batch, pieces, &device).print();
    let length = SAMPLE.min(20 * schedule.stop);
    let made_up = sample::sample(&model, vocabulary, "\n", length, config.context, &device)?;
    println!("\n{}", made_up.trim());
    Ok(())
}
