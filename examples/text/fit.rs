//! Training within a memory budget.

use anyhow::{Result, bail};
use backburn::optim::AdamWConfig;
use backburn::{Budget, Plan, Planner};
use burn::prelude::*;

use crate::model::{LanguageModel, LanguageModelConfig};

/// Plans a training of the model of `config` that needs at most `budget`, on steps of the size of `batch`, and prints the plan.
pub fn plan(
    config: &LanguageModelConfig,
    budget: Budget,
    batch: &Tensor<2, Int>,
    device: &Device,
) -> Result<Plan<AdamWConfig>> {
    let [pieces, _] = batch.dims();
    let optimizer = AdamWConfig::new().with_weight_decay(0.01);
    let loss = |model: &LanguageModel, items| model.losses(batch.clone().narrow(0, 0, items)).total;
    let planner = Planner::new(|| config.init(device), optimizer).with_batch(pieces);
    let planner = planner.with_progress(|tried| println!("trying: {tried}"));
    println!("planning for {budget}: dry runs over up to {pieces} pieces");
    let plan = planner.plan(loss, budget)?;
    println!("{plan}");
    Ok(plan)
}

/// Returns the saved plan of a resumed training, if it fits `budget`.
pub fn resumed(
    saved: Option<Plan<AdamWConfig>>,
    budget: Option<Budget>,
    device: &Device,
) -> Result<Option<Plan<AdamWConfig>>> {
    let bytes = budget.map(|budget| budget.bytes(&device.clone().inner()));
    match (saved, bytes.transpose()?) {
        (Some(plan), Some(bytes)) if plan.device_bytes > bytes => bail!(
            "was planned to take {} bytes, but `--fit` allows {bytes}: pass a larger `--fit`, or start a new training",
            plan.device_bytes
        ),
        (None, Some(_)) => bail!("was trained without a plan: resume it without `--fit`"),
        (saved, _) => Ok(saved),
    }
}
