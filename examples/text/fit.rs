//! How to train within a number of bytes.

use anyhow::Result;
use backburn::optim::AdamWConfig;
use backburn::{Budget, Plan, Planner};
use burn::prelude::*;

use crate::model::{LanguageModel, LanguageModelConfig};

/// Plans a training of the model of `config`, on steps of the size of `batch`, that takes no more than `budget`, and prints the ladder.
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
    println!("planning for {budget}: passes over up to {pieces} pieces, none of them trained on");
    let measured = planner.measure(loss, budget)?;
    println!("{measured}");
    Ok(measured.choose(budget)?)
}
