//! The whole program: reads, plans, trains, writes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use backburn::optim::AdamWConfig;
use backburn::{FusedOptimizer, Plan, PlanError, Planner};
use burn::prelude::*;
use peak_alloc::PeakAlloc;

use crate::card;
use crate::config::DecoderConfig;
use crate::counts::Counts;
use crate::data::Data;
use crate::decoder::Decoder;
use crate::dry_run;
use crate::evaluation::Evaluation;
use crate::log::Log;
use crate::losses::Losses;
use crate::names;
use crate::options::Options;
use crate::output::Output;
use crate::print::{self, say};
use crate::room;
use crate::rows::{Order, Rows};
use crate::sample::sample;
use crate::saved::{Best, Checkpoints, Saved, Settings};
use crate::schedule::Schedule;
use crate::signals;
use crate::tokens::Tokens;
use crate::train::{End, Training};
use crate::trained::Trained;
use crate::weights;

/// Tokens of a prompt that is taken from the data.
const PROMPT: usize = 24;

/// A training of fewer steps is short.
const FEW_STEPS: usize = 20;

const UNPRINTED: &str = "the standard output can't be written: it is closed, or its disk is full";

/// Fine-tunes as `options` say; `stop`, once set, ends the training after a step, with a checkpoint. Returns the number of steps made.
pub fn run(options: &Options, stop: &AtomicBool, bytes: &PeakAlloc) -> Result<usize> {
    let config = DecoderConfig::read(&options.model)?;
    options.check(&config)?;
    let tensors = weights::check(&options.model, &config)?;
    let dtype = options.dtype.dtype(weights::dtype(&options.model)?);
    let tokens = Tokens::read(&options.model, &config)?;
    let data = Data::read(options, &config, &tokens)?;
    let (rows, held_out) = (&data.rows, &data.held_out);
    let prompt = match &options.prompt {
        Some(prompt) => tokens.prompt(prompt, data.is_chats)?,
        None if held_out.is_empty() => rows.beginning(PROMPT),
        None => held_out.beginning(PROMPT),
    };
    let steps = options.steps(rows.len())?;
    if options.dry_run {
        dry_run::print(&data, &tokens, steps, options.batch)?;
        let device = options.device.device().autodiff();
        say!("{}", fuse(options, &config, None, &device)?);
        ensure!(!print::has_failed(), "{UNPRINTED}");
        return Ok(0);
    }
    ensure!(
        !held_out.is_empty() || !options.follows_loss(),
        "`--keep-best` and `--patience` need the held-out loss: raise `--held-out`, or name a file with `--validation`"
    );

    let mut output = Output::open(&options.output, &options.model, options.overwrite)?;
    let checkpoints = Checkpoints::of(options);
    let mut saved = Saved::new(Settings::new(options, &data)?, steps);
    let newest = checkpoints.newest()?;
    if let Some(newest) = &newest {
        newest.check(&saved, &checkpoints.folder)?;
    }
    let finished = saved.finished(format!(
        "--dtype {}, --merge {}, --keep-best {}, --patience {:?}",
        dtype.name(),
        options.merge,
        options.keep_best,
        options.patience
    ));
    if output.finished()? == Some(&finished) {
        say!(
            "the training is done, and its result is in {}: nothing is written. Raise `--epochs` or `--steps` to train on",
            options.output.display()
        );
        return Ok(steps);
    }
    output.check_foreign()?;
    if newest.is_none() {
        output.check_empty()?;
    }
    checkpoints.check()?;
    let counts = Counts::of(options, &tensors);
    room::check(options, counts, dtype, steps)?;

    let device = options.device.device().autodiff();
    let is_resumed = newest.is_some();
    match newest {
        Some(newest) => {
            saved.plan = resumed_plan(options, newest.plan)?;
            saved.loss_before = newest.loss_before;
            saved.best = newest.best;
        }
        None => {
            Checkpoints::best(options).remove()?;
            saved.plan = plan(options, &config, rows, &device)?;
        }
    }
    let mut fused = fuse(options, &config, saved.plan.as_ref(), &device)?;
    let done = match is_resumed {
        true => checkpoints.load(&mut fused)?,
        false => 0,
    };
    saved.best = resumed_best(options, &saved, &fused, done)?;
    let end = options.stop.unwrap_or(steps).min(steps);
    ensure!(
        done <= end,
        "the checkpoint has made {done} steps already, and `--stop` is {end}: stop later"
    );
    say!("{fused}");
    report_extent(options, counts, rows.length(), steps);
    let micro_batch = match &saved.plan {
        Some(plan) => plan.batch,
        None => options.batch.div_ceil(options.accumulate),
    };
    let evaluation = Evaluation {
        rows: held_out,
        batch: micro_batch,
        device: device.clone(),
    };
    if is_resumed {
        say!("going on after step {done} of {steps}");
    } else if let Some(loss) = evaluation.loss(&fused.valid()) {
        say!("held-out loss {loss:.4} before");
        saved.loss_before = Some(loss);
    }
    ensure!(!print::has_failed(), "{UNPRINTED}");
    let mut training = Training {
        log: Log::open(&options.output, done)?,
        fused,
        rows,
        evaluation: evaluation.clone(),
        order: Order::new(rows.len(), options.seed),
        schedule: Schedule {
            rate: options.learning_rate(),
            warm_up: (steps as f64 * options.warm_up).ceil() as usize,
            steps,
        },
        batch: options.batch,
        micro_batch,
        save_every: options.save_every,
        best: options.keep_best.then(|| Checkpoints::best(options)),
        patience: options.patience,
        device: device.clone(),
    };
    signals::set_training(true);
    let made = match training.run(done, end, (&checkpoints, &mut saved), stop, bytes)? {
        End::Complete(made) => made,
        End::Stopped(made) => {
            let stopped = format!("stopped after step {made} of {steps}: the same command goes on");
            ensure!(!print::has_failed(), "{UNPRINTED}: {stopped}");
            training.log.check().with_context(|| stopped.clone())?;
            say!("{stopped}");
            return Ok(made);
        }
    };
    match (saved.best, &training.best) {
        (Some(best), Some(checkpoint)) if best.step != made => {
            checkpoint.load(&mut training.fused)?;
            say!(
                "the weights of step {} are written: their held-out loss is the lowest",
                best.step
            );
        }
        (None, Some(_)) => say!(
            "no checkpoint of this training has a held-out loss, so the last weights are written"
        ),
        _ => {}
    }
    let result = Trained::of(options, training.fused, dtype, &evaluation);
    let losses = Losses {
        before: saved.loss_before,
        trained: result.trained_loss,
        after: result.loss,
    };
    losses.report(dtype);
    let write = |folder: &Path| {
        result.write(options, folder, dtype)?;
        card::write(options, made, losses, folder)
    };
    let written = output.replace(&result.files(&options.model), finished, write);
    written.context(
        "the model is trained, but only its checkpoint is written: the same command goes on",
    )?;
    say!("written to {}", options.output.display());
    signals::set_training(false);
    report_peaks(saved.plan.as_ref(), bytes);
    if stop.load(Ordering::Relaxed) {
        return Ok(made);
    }

    let length = options.length(&config);
    let model = result.inference();
    let answer = sample(&model, &tokens, &prompt, options.sample, length, &device)?;
    say!("\n{}|{answer}", tokens.decode(&prompt)?);
    Ok(made)
}

/// Returns the lowest loss of the training so far. If the program was killed between two saves, the checkpoint that was loaded after
/// `done` steps is the best and is saved as such now.
fn resumed_best(
    options: &Options,
    saved: &Saved,
    fused: &FusedOptimizer<Decoder>,
    done: usize,
) -> Result<Option<Best>> {
    let Some(best) = saved.best.filter(|_| options.keep_best) else {
        return Ok(saved.best);
    };
    let checkpoints = Checkpoints::best(options);
    let kept = checkpoints.newest()?.and_then(|kept| kept.best);
    if kept.is_some_and(|kept| kept.step == best.step) {
        return Ok(Some(best));
    }
    if best.step == done {
        checkpoints.save(fused, saved, done)?;
        return Ok(Some(best));
    }
    Ok(kept)
}

/// Prints the length of the training, and the share of the weights that it trains.
fn report_extent(options: &Options, counts: Counts, length: usize, steps: usize) {
    let tokens = (steps as u64).saturating_mul((options.batch * length) as u64);
    say!(
        "{steps} steps with {} rows each, {tokens} tokens in all; {} of {} weights are trained ({:.2} %)",
        options.batch,
        counts.trained,
        counts.base,
        100.0 * counts.trained as f64 / counts.base as f64
    );
    if steps < FEW_STEPS {
        say!(
            "a training of {steps} steps is short: use more data, raise `--epochs` or `--steps`, or lower `--batch`"
        );
    }
}

/// Prints the most memory that was used.
fn report_peaks(plan: Option<&Plan<AdamWConfig>>, bytes: &PeakAlloc) {
    say!("peak {:.0} MB", bytes.peak_usage() as f64 / 1e6);
    if let Some(bytes) = resident_peak() {
        say!("resident peak {:.0} MB", bytes as f64 / 1e6);
    }
    if let Some(plan) = plan {
        say!(
            "planned {:.0} MB of allocated bytes; the program, mapped files and free pages of the heap are resident in addition",
            plan.device_bytes as f64 / 1e6
        );
    }
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
        .with_progress(|tried| say!("trying: {tried}"));
    say!(
        "planning for {budget}: passes over up to {} rows, none of them trained on",
        options.batch
    );
    let plan = planner.plan(loss, budget).map_err(|error| match error {
        PlanError::NothingFits {
            budget,
            least,
            is_enough,
            ..
        } => {
            let needed = match is_enough {
                true => format!("`--fit {least}` is enough"),
                false => format!("the training takes about {least} bytes"),
            };
            anyhow!(
                "the training does not fit {budget} bytes, and {needed}: raise `--fit`, lower `--length`, or train adapters with \
                 `--method qlora4`"
            )
        }
        error => anyhow!(names::in_files(&error)),
    })?;
    say!("{plan}");
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
