//! Plans for `--fit`, and the model that a plan trains.

use anyhow::{Result, anyhow, bail, ensure};
use backburn::optim::AdamWConfig;
use backburn::{FusedOptimizer, Plan, PlanError, Planner, Technique};
use burn::prelude::*;
use burn::tensor::FloatDType;

use crate::config::DecoderConfig;
use crate::counts::Counts;
use crate::decoder::Decoder;
use crate::method::{self, Method};
use crate::names;
use crate::options::Options;
use crate::print::{count, say};
use crate::rows::{Order, Rows};

/// Plans a training within the budget, if there is one.
pub fn plan(
    options: &Options,
    config: &DecoderConfig,
    counts: Counts,
    rows: &Rows,
    device: &Device,
) -> Result<Option<Plan<AdamWConfig>>> {
    let Some(budget) = options.fit else {
        return Ok(None);
    };
    if options.method.has_adapters() {
        check_base(
            options.method,
            budget.bytes(&device.clone().inner())?,
            counts,
        )?;
        // What can't be loaded is an error here; in the planner it is a panic.
        drop(options.load(config, options.dtype(), device)?);
    }
    let init = || match options.method {
        // In f32 the file may not fit.
        Method::Full => method::zeros(config, device),
        _ => options
            .load(config, options.dtype(), device)
            .expect("it was loaded before"),
    };
    let mut all = Order::new(rows.len(), options.seed).of_step(0, options.batch);
    // The masks of several documents in a row take memory.
    all[0] = rows.with_most_documents();
    let loss = |model: &Decoder, items: usize| {
        let batch = rows.batch(&all[..items], device);
        model
            .sum_of_losses(batch.tokens, batch.targets)
            .div_scalar(batch.counted as f64)
    };
    let changes_weights =
        |it: &&Technique| matches!(it, Technique::Split24 | Technique::Stochastic);
    let techniques = Technique::LEAST_COST.iter();
    // The base of adapters is read in f32: to round it would take both.
    let techniques =
        techniques.filter(|it| !(options.method.has_adapters() && changes_weights(it)));
    let techniques: Vec<Technique> = techniques.copied().collect();
    let planner = Planner::new(init, options.optimizer())
        .with_batch(options.batch)
        .with_order(&techniques)
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
            let advice = match options.method {
                Method::Qlora4 => "raise `--fit`, or lower `--length`",
                _ => "raise `--fit`, lower `--length`, or train adapters with `--method qlora4`",
            };
            anyhow!("the training does not fit {budget} bytes, and {needed}: {advice}")
        }
        error => anyhow!(names::in_files(&error)),
    })?;
    say!("{plan}");
    Ok(Some(plan))
}

/// Returns an error if the base of adapters takes more than the budget. Only weights that have an adapter are quantized.
fn check_base(method: Method, budget: usize, counts: Counts) -> Result<()> {
    let (bits, advice) = match method {
        Method::Full | Method::Lora => (32, "raise it, or quantize with `--method qlora4`"),
        Method::Qlora8 => (8, "raise it, or quantize with `--method qlora4`"),
        Method::Qlora4 => (4, "raise it"),
    };
    let needed = counts.adapted * bits / 8 + (counts.base - counts.adapted) * 4;
    ensure!(
        needed <= budget as u64,
        "the base takes {needed} bytes, with {bits} bits for each adapted weight, and `--fit` has {budget}: {advice}"
    );
    Ok(())
}

/// Returns the saved plan of a resumed training, if it fits the budget.
pub fn resumed_plan(
    options: &Options,
    saved: Option<Plan<AdamWConfig>>,
    device: &Device,
) -> Result<Option<Plan<AdamWConfig>>> {
    if saved.is_some() && options.fit.is_none() {
        for (option, is_set) in [
            ("accumulate", options.accumulate > 1),
            ("keep-activations", options.keep_activations),
        ] {
            ensure!(
                !is_set,
                "the checkpoint has a plan, which `--{option}` would change: leave it out, or begin in another folder"
            );
        }
    }
    match (saved, options.fit) {
        (Some(mut plan), Some(budget)) => {
            let bytes = budget.bytes(&device.clone().inner())?;
            ensure!(
                plan.device_bytes <= bytes,
                "the plan of the checkpoint takes {} bytes, and `--fit` has {bytes}: pass at least as many, or begin in another folder",
                plan.device_bytes
            );
            plan.budget = bytes;
            Ok(Some(plan))
        }
        (None, Some(_)) => {
            bail!("the checkpoint was trained without a plan: resume without `--fit`")
        }
        (saved, None) => Ok(saved),
    }
}

/// Returns the model in the files, as `plan` or the options train it.
pub fn fuse(
    options: &Options,
    config: &DecoderConfig,
    plan: Option<&Plan<AdamWConfig>>,
    device: &Device,
) -> Result<FusedOptimizer<Decoder>> {
    let decoder = options.load(config, dtype(options, plan), device)?;
    fuse_decoder(options, plan, decoder)
}

/// Returns the training that a checkpoint is loaded into.
pub fn fuse_outline(
    options: &Options,
    config: &DecoderConfig,
    plan: Option<&Plan<AdamWConfig>>,
    device: &Device,
) -> Result<FusedOptimizer<Decoder>> {
    // A cast would allocate the outline.
    let dtype = dtype(options, plan);
    let decoder = options.outline(config, dtype, device)?;
    fuse_decoder(options, plan, decoder)
}

/// Returns the type of the weights in training.
fn dtype(options: &Options, plan: Option<&Plan<AdamWConfig>>) -> FloatDType {
    match (options.method, plan.and_then(|plan| plan.weights)) {
        (Method::Full, Some(dtype)) => dtype,
        _ => options.dtype(),
    }
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
