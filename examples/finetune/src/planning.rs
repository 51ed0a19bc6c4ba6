//! Plans for `--fit`, and the model that a plan trains.

use anyhow::{Result, anyhow, bail, ensure};
use backburn::optim::AdamWConfig;
use backburn::{Budget, FusedOptimizer, Plan, PlanError, Planner};
use burn::prelude::*;

use crate::config::DecoderConfig;
use crate::decoder::Decoder;
use crate::names;
use crate::options::Options;
use crate::print::{count, say};
use crate::rows::{Order, Rows};

/// Plans a training within the budget, if there is one.
pub fn plan(
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
        "planning for {budget}: passes over up to {}, which train nothing",
        count(options.batch, "row")
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
pub fn resumed_plan(
    options: &Options,
    saved: Option<Plan<AdamWConfig>>,
) -> Result<Option<Plan<AdamWConfig>>> {
    match (&saved, options.fit) {
        (Some(plan), Some(Budget::Bytes(bytes))) => ensure!(
            plan.device_bytes <= bytes,
            "the checkpoint was planned to take {} bytes, and `--fit` has {bytes}: give as many, or begin in another folder",
            plan.device_bytes
        ),
        (None, Some(_)) => {
            bail!("the checkpoint was trained without a plan: resume without `--fit`")
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

/// Returns the model in the files, as `plan` or the options train it.
pub fn fuse(
    options: &Options,
    config: &DecoderConfig,
    plan: Option<&Plan<AdamWConfig>>,
    device: &Device,
) -> Result<FusedOptimizer<Decoder>> {
    fuse_decoder(options, plan, load(options, config, device)?)
}

/// Returns the training that a checkpoint is loaded into.
pub fn fuse_outline(
    options: &Options,
    config: &DecoderConfig,
    plan: Option<&Plan<AdamWConfig>>,
    device: &Device,
) -> Result<FusedOptimizer<Decoder>> {
    let method = options.method;
    let decoder = method.outline(options, config, options.dtype(), device)?;
    fuse_decoder(options, plan, decoder)
}

fn fuse_decoder(
    options: &Options,
    plan: Option<&Plan<AdamWConfig>>,
    decoder: Decoder,
) -> Result<FusedOptimizer<Decoder>> {
    if let Some(plan) = plan {
        return Ok(plan.fuse(|| decoder)?);
    }
    let fused = FusedOptimizer::new(decoder, options.optimizer().init())?;
    Ok(fused.with_config(options.fused())?)
}
