//! The whole program: reads, plans, trains, writes.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use backburn::FusedOptimizer;
use peak_alloc::PeakAlloc;

use crate::conversion::{self, Conversion};
use crate::decoder::Decoder;
use crate::evaluation::Evaluation;
use crate::extent;
use crate::inputs::Inputs;
use crate::log::Log;
use crate::options::Options;
use crate::output::Output;
use crate::peaks;
use crate::planning;
use crate::print::{self, say};
use crate::result::TrainingResult;
use crate::room;
use crate::rows::Order;
use crate::sample::sample;
use crate::saved::{Best, Checkpoints, Saved, Settings};
use crate::schedule::Schedule;
use crate::signals;
use crate::train::{End, Training};

const UNPRINTED: &str = "the standard output can't be written: it is closed, or its disk is full. Run the same command again";

/// Fine-tunes as `options` say; `stop`, once set, ends the training after a step, with a checkpoint. Returns the number of steps made.
pub fn run(options: &Options, stop: &AtomicBool, bytes: &PeakAlloc) -> Result<usize> {
    let made = fine_tune(options, stop, bytes)?;
    ensure!(!print::has_failed(), "{UNPRINTED}");
    Ok(made)
}

fn fine_tune(options: &Options, stop: &AtomicBool, bytes: &PeakAlloc) -> Result<usize> {
    let inputs = Inputs::read(options, bytes)?;
    if options.dry_run {
        inputs.dry_run(bytes)?;
        return Ok(0);
    }
    let Inputs {
        options,
        config,
        tokens,
        data,
        device,
        dtype,
        counts,
        prompt,
        steps,
        stop_at,
    } = &inputs;
    let (dtype, counts, steps, stop_at) = (*dtype, *counts, *steps, *stop_at);
    let (rows, held_out) = (&data.rows, &data.held_out);

    let mut sources = vec![("--model", options.model.as_path())];
    sources.extend(
        options
            .adapters
            .iter()
            .map(|it| ("--adapters", it.as_path())),
    );
    let mut output = Output::open(&options.output, &sources, options.overwrite)?;
    let checkpoints = Checkpoints::of(options);
    let mut saved = Saved::new(Settings::new(options, data)?, steps);
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
        let is_over = newest
            .as_ref()
            .is_some_and(|it| it.is_over(options.patience));
        say!(
            "the training is done, and its result is in {}: nothing is written. Raise {} to train on",
            options.output.display(),
            match is_over {
                true => "`--patience` (and `--epochs` or `--steps`, if all are made)",
                false => "`--epochs` or `--steps`",
            }
        );
        return Ok(steps);
    }
    output.check_foreign()?;
    if newest.is_none() {
        output.check_empty()?;
        if options.keep_best {
            Checkpoints::best(options).check_empty()?;
        }
    }
    checkpoints.check()?;

    let is_resumed = newest.is_some();
    let (fused, done) = begin(&inputs, newest, &checkpoints, &mut saved, bytes)?;
    let plan = saved.plan.as_ref();
    let held = match saved.held {
        Some(held) => held,
        None => peaks::held(&device.clone().inner(), bytes)?,
    };
    Conversion::check(options, plan, &fused, counts, dtype, held)?;
    ensure!(
        done <= stop_at,
        "the checkpoint is of step {done}, and `--stop` is {stop_at}: stop later"
    );
    saved.best = resumed_best(options, &saved, &fused, done)?;
    // The newest one is intact.
    checkpoints.remove_older(options.keep_last)?;
    say!("{fused}");
    extent::report(options, counts, rows.length(), steps);
    let micro_batch = match &saved.plan {
        Some(plan) => plan.batch,
        None => options.batch.div_ceil(options.accumulate),
    };
    let evaluation = Evaluation {
        rows: held_out,
        batch: micro_batch,
        device: device.clone(),
    };
    let fused = if is_resumed {
        say!("resuming after step {done} of {steps}");
        fused
    } else {
        let weights = conversion::weights(options, saved.plan.as_ref());
        let (fused, loss) = evaluation.loss_in_f32(fused, weights)?;
        if let Some(loss) = loss {
            ensure!(
                loss.is_finite(),
                "the held-out loss before the training is {loss}, which no learning rate can mend: the weights of the model are too large. Use another one"
            );
            say!("held-out loss {loss:.4} before");
            saved.loss_before = Some(loss);
        }
        fused
    };
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
    let made = match training.run(done, stop_at, (&checkpoints, &mut saved), stop, bytes)? {
        End::Complete(made) => made,
        End::Stopped(made) => {
            let stopped =
                format!("stopped after step {made} of {steps}: the same command resumes it");
            training.log.check().with_context(|| stopped.clone())?;
            say!("{stopped}");
            peaks::report(saved.plan.as_ref(), bytes);
            return Ok(made);
        }
    };
    let result = TrainingResult {
        options,
        config,
        made,
        dtype,
        evaluation,
        saved: saved.clone(),
    };
    let result = result.write(training, &mut output, finished)?;
    signals::set_training(false);
    if !stop.load(Ordering::Relaxed) {
        let length = options.length(config);
        let model = result.inference();
        let answer = sample(&model, tokens, prompt, options.sample, length, device)?;
        say!("\n{}|{answer}\n", tokens.decode(prompt)?);
    }
    peaks::report(saved.plan.as_ref(), bytes);
    Ok(made)
}

/// Returns the training that the checkpoint `newest` resumes, or else a new one, and the number of steps made.
fn begin(
    inputs: &Inputs,
    newest: Option<Saved>,
    checkpoints: &Checkpoints,
    saved: &mut Saved,
    bytes: &PeakAlloc,
) -> Result<(FusedOptimizer<Decoder>, usize)> {
    let Inputs {
        options,
        config,
        device,
        counts,
        ..
    } = inputs;
    let is_resumed = newest.is_some();
    saved.plan = match newest {
        Some(newest) => {
            saved.held = newest.held;
            saved.loss_before = newest.loss_before;
            saved.best = newest.best;
            planning::resumed_plan(options, newest.plan, device)?
        }
        None => planning::plan(options, config, *counts, &inputs.data.rows, device)?,
    };
    let plan = saved.plan.as_ref();
    room::check(options, plan, *counts, inputs.dtype, inputs.steps)?;
    if is_resumed {
        let mut fused = planning::fuse_outline(options, config, plan, device)?;
        let done = checkpoints.load(&mut fused)?;
        return Ok((fused, done));
    }
    let fused = planning::fuse(options, config, plan, device)?;
    saved.held = Some(peaks::held(&device.clone().inner(), bytes)?);
    Ok((fused, 0))
}

/// Returns the lowest loss of the training so far. Removes best checkpoints after step `done`: those steps are trained again. If the
/// program was killed between two saves, the checkpoint that was loaded is the best and is saved as such now.
fn resumed_best(
    options: &Options,
    saved: &Saved,
    fused: &FusedOptimizer<Decoder>,
    done: usize,
) -> Result<Option<Best>> {
    if !options.keep_best {
        return Ok(saved.best);
    }
    let checkpoints = Checkpoints::best(options);
    checkpoints.check()?;
    if let Some(kept) = checkpoints.newest()? {
        kept.check(saved, &checkpoints.folder)?;
    }
    checkpoints.remove_later(done)?;
    let kept = checkpoints.newest()?.and_then(|kept| kept.best);
    let is_kept = |best: Best| kept.is_some_and(|kept| kept.step == best.step);
    match saved.best {
        Some(best) if is_kept(best) => Ok(Some(best)),
        Some(best) if best.step == done => {
            checkpoints.save(fused, saved, done)?;
            Ok(Some(best))
        }
        _ => Ok(kept),
    }
}
