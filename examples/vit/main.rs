//! Trains a vision transformer on handwritten digits, on the CPU, with the optimizer fused into the backward pass.
//!
//! ```sh
//! cargo run --release -p vit
//! cargo run --release -p vit -- --help
//! ```

#[path = "../shared/backend.rs"]
mod backend;
mod clipping;
mod compare;
mod data;
mod devices;
mod fit;
#[path = "../shared/formats.rs"]
mod formats;
mod gradient_checkpointing;
mod lines;
mod model;
#[path = "../shared/offload.rs"]
mod offload;
mod options;
mod preset;
mod training;

use std::process::ExitCode;

use anyhow::{Context, Result};
use backburn::memory::RecordingAllocator;
use burn::prelude::*;
use burn::tensor::FloatDType;
use clap::Parser;
use peak_alloc::PeakAlloc;

use data::Split;
use gradient_checkpointing::GradientCheckpointing;
use options::Options;
use training::Method;

static PEAK: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

fn main() -> ExitCode {
    match train(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn train(mut options: Options) -> Result<()> {
    options.check()?;
    // Memory that a step frees stays in the process for the next one.
    backburn::memory::keep_pages();
    // Before the first tensor on a GPU: the memory pools then reuse what is released.
    #[cfg(feature = "cubecl")]
    backburn::memory::match_pool_sizes()?;

    if let Some(waiting) = options.offload {
        waiting.check(options.device)?;
    }
    let data = match &options.images {
        Some(folder) => Split::folder(folder)?,
        None => Split::digits()?,
    };
    let config = options.preset.config().with_classes(data.classes);
    let mut config = config
        .with_recompute_blocks(options.gradient_checkpointing() == GradientCheckpointing::Block);
    if let Some(dropout) = options.dropout {
        config = config.with_dropout(dropout);
    } else if options.compare && options.devices.is_some() {
        println!(
            "without dropout, because on several devices the random numbers of stock Burn depend on timing"
        );
        config = config.with_dropout(0.0);
    }

    let folder = &options.output;
    let context = || format!("folder {} can't be written", folder.display());
    std::fs::create_dir_all(folder).with_context(context)?;
    config
        .save(folder.join("config.json"))
        .with_context(context)?;

    let device = options.device.device();
    backburn::check_device(&device, FloatDType::F32)?;
    device.seed(options.seed);
    let initial = folder.join("initial.bpk");
    let model = config.init(&device);
    println!("{} parameters", model.num_params());
    model.save_file(&initial).with_context(context)?;

    let plan = match options.fit {
        Some(budget) => Some(fit::plan(&options, &config, &data, budget)?),
        None => None,
    };
    if let Some(plan) = &plan {
        options.batch_size = plan.batch.try_into()?;
        options.accumulation = plan.accumulation.try_into()?;
        config = config.with_micro_batches(plan.accumulation);
    }
    let outcome = if options.compare {
        compare::compare(&options, &config, &data, &initial)?
    } else {
        let method = match options.stock {
            true => Method::Stock,
            false => Method::Fused,
        };
        training::run(&options, &config, &data, &initial, folder, method, plan)?
    };

    let file = folder.join("model.bpk");
    outcome.model.save_file(&file).with_context(context)?;
    println!(
        "validation accuracy {:.1} %, {:.0} s, model saved as {}",
        outcome.accuracy * 100.0,
        outcome.time.as_secs_f64(),
        file.display()
    );
    Ok(())
}
