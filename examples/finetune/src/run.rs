//! The whole program: reads, plans, trains, writes.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use backburn::optim::AdamWConfig;
use backburn::{FusedOptimizer, Plan, PlanError, Planner};
use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;
use peak_alloc::PeakAlloc;

use crate::config::DecoderConfig;
use crate::data::Data;
use crate::decoder::Decoder;
use crate::dry_run;
use crate::options::Options;
use crate::output;
use crate::rows::{Order, Rows};
use crate::sample::sample;
use crate::saved::{Checkpoints, Saved};
use crate::schedule::Schedule;
use crate::tokens::Tokens;
use crate::train::Training;
use crate::weights;

/// Tokens of a prompt that is taken from the data.
const PROMPT: usize = 24;

/// Fine-tunes as `options` say; `stop`, once set, ends the training after a step, with a checkpoint. Returns the number of steps made.
pub fn run(options: &Options, stop: &AtomicBool, bytes: &PeakAlloc) -> Result<usize> {
    let config = DecoderConfig::read(&options.model)?;
    options.check(&config)?;
    let base_dtype = weights::dtype(&options.model)?;
    let tokens = Tokens::read(&options.model, &config)?;
    let data = Data::read(options, &config, &tokens)?;
    let (rows, held_out) = (&data.rows, &data.held_out);
    let prompt = match &options.prompt {
        Some(prompt) => tokens.prompt(prompt, data.is_chats)?,
        None if held_out.is_empty() => rows.beginning(PROMPT),
        None => held_out.beginning(PROMPT),
    };
    let steps = (rows.len() * options.epochs).div_ceil(options.batch);
    let steps = options.steps.unwrap_or(steps);
    if options.dry_run {
        dry_run::print(&data, &tokens, steps, options.batch)?;
        let device = options.device.device().autodiff();
        println!("{}", fuse(options, &config, None, &device)?);
        return Ok(0);
    }

    let checkpoints = Checkpoints::of(options);
    let mut saved = Saved::new(options, rows, steps, None)?;
    let newest = checkpoints.newest()?;
    match &newest {
        Some(newest) => newest.check(&saved, &checkpoints.folder)?,
        None => output::check(&options.output, &options.model)?,
    }
    checkpoints.check()?;

    let device = options.device.device().autodiff();
    let is_resumed = newest.is_some();
    saved.plan = match newest {
        Some(newest) => resumed_plan(options, newest.plan)?,
        None => plan(options, &config, rows, &device)?,
    };
    let mut fused = fuse(options, &config, saved.plan.as_ref(), &device)?;
    let done = match is_resumed {
        true => checkpoints.load(&mut fused)?,
        false => 0,
    };
    println!("{fused}");
    let mut training = Training {
        fused,
        rows,
        held_out,
        order: Order::new(rows.len(), options.seed),
        schedule: Schedule {
            rate: options.learning_rate(),
            warm_up: (steps as f64 * options.warm_up).ceil() as usize,
            steps,
        },
        batch: options.batch,
        micro_batch: match &saved.plan {
            Some(plan) => plan.batch,
            None => options.batch.div_ceil(options.accumulate),
        },
        save_every: options.save_every,
        device: device.clone(),
    };
    if is_resumed {
        println!("going on after step {done} of {steps}");
    } else if !held_out.is_empty() {
        println!("held-out loss {:.4} before", training.held_out_loss());
    }
    let end = options.stop.unwrap_or(steps).min(steps);
    ensure!(
        done <= end,
        "the checkpoint has made {done} steps already, and `--stop` is {end}: stop later"
    );
    let made = training.run(done, end, (&checkpoints, &saved), stop, bytes)?;
    if made < steps {
        println!("stopped after step {made} of {steps}: the same command goes on");
        return Ok(made);
    }
    if !held_out.is_empty() {
        println!("held-out loss {:.4} after", training.held_out_loss());
    }
    println!("peak {:.0} MB", bytes.peak_usage() as f64 / 1e6);
    if let Some(bytes) = resident_peak() {
        println!("resident peak {:.0} MB", bytes as f64 / 1e6);
    }
    if let Some(plan) = &saved.plan {
        println!(
            "planned {:.0} MB of allocated bytes; the program, mapped files and free pages of the heap are resident in addition",
            plan.device_bytes as f64 / 1e6
        );
    }
    if let Err(error) = write(options, &training.fused, base_dtype) {
        let is_saved = checkpoints.save(&training.fused, &saved, made);
        is_saved.with_context(|| format!("{error:#}, nor the checkpoint of step {made}"))?;
        return Err(error.context(
            "the model is trained, but only its checkpoint is written: the same command goes on",
        ));
    }

    let model = training.fused.valid();
    let length = options.length(&config);
    let answer = sample(&model, &tokens, &prompt, options.sample, length, &device)?;
    println!("\n{}|{answer}", tokens.decode(&prompt)?);
    Ok(made)
}

/// Plans a training within the budget, if there is one.
fn plan(
    options: &Options,
    config: &DecoderConfig,
    rows: &Rows,
    device: &Device,
) -> Result<Option<Plan<AdamWConfig>>> {
    let Some(budget) = options.fit else {
        return Ok(None);
    };
    // What can't be loaded is an error here; in the planner it is a panic.
    drop(load(options, config, device)?);
    let init = || load(options, config, device).expect("it was loaded before");
    let all = Order::new(rows.len(), options.seed).of_step(0, options.batch);
    let loss = |model: &Decoder, items: usize| {
        let batch = rows.batch(&all[..items], device);
        model
            .sum_of_losses(batch.tokens, batch.targets)
            .div_scalar(batch.counted as f64)
    };
    let planner = Planner::new(init, options.optimizer())
        .with_batch(options.batch)
        .with_config(options.fused())
        .with_progress(|tried| println!("trying: {tried}"));
    println!(
        "planning for {budget}: passes over up to {} rows, none of them trained on",
        options.batch
    );
    let plan = planner.plan(loss, budget).map_err(|error| match error {
        PlanError::NothingFits { .. } => anyhow::Error::from(error)
            .context("raise `--fit`, lower `--length`, or train adapters with `--method qlora4`"),
        error => error.into(),
    })?;
    println!("{plan}");
    Ok(Some(plan))
}

/// Returns the saved plan of a resumed training, if it fits the budget.
fn resumed_plan(
    options: &Options,
    saved: Option<Plan<AdamWConfig>>,
) -> Result<Option<Plan<AdamWConfig>>> {
    match (&saved, options.fit) {
        (Some(plan), Some(backburn::Budget::Bytes(bytes))) => ensure!(
            plan.device_bytes <= bytes,
            "the checkpoint was planned to take {} bytes, and `--fit` has {bytes}: give as many, or begin in another folder",
            plan.device_bytes
        ),
        (None, Some(_)) => {
            anyhow::bail!("the checkpoint was trained without a plan: go on without `--fit`")
        }
        _ => {}
    }
    Ok(saved)
}

fn load(options: &Options, config: &DecoderConfig, device: &Device) -> Result<Decoder> {
    options
        .method
        .load(options, config, options.dtype(), device)
}

fn fuse(
    options: &Options,
    config: &DecoderConfig,
    plan: Option<&Plan<AdamWConfig>>,
    device: &Device,
) -> Result<FusedOptimizer<Decoder>> {
    let decoder = load(options, config, device)?;
    if let Some(plan) = plan {
        return Ok(plan.fuse(|| decoder)?);
    }
    let fused = FusedOptimizer::new(decoder, options.optimizer().init())?;
    Ok(fused.with_config(options.fused())?)
}

/// Returns the most memory of this process so far, where the system is Linux.
fn resident_peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"))?;
    let kilobytes: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(1024 * kilobytes)
}

/// Writes what was trained to `options.output`.
fn write(options: &Options, fused: &FusedOptimizer<Decoder>, base_dtype: DType) -> Result<()> {
    let (base, folder) = (&options.model, &options.output);
    match options.method.has_adapters() {
        true if options.merge => {
            output::write_model(&fused.model().materialize(), base, folder, base_dtype)?;
        }
        true => output::write_adapters(&fused.model(), &options.adapters(), base, folder)?,
        // A file in f32 has all bits of weights in bf16, too.
        false if base_dtype == DType::F32 => {
            output::write_model(&fused.full_precision_model(), base, folder, base_dtype)?;
        }
        false => output::write_model(&fused.model(), base, folder, base_dtype)?,
    }
    println!("written to {}", folder.display());
    Ok(())
}
