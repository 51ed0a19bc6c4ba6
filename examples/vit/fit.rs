//! Training within a memory budget.

use anyhow::{Result, ensure};
use backburn::optim::AdamWConfig;
use backburn::{Budget, FusedConfig, GlobalNormClippingConfig, Plan, Planner};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;

use crate::data::{ImageBatcher, Split};
use crate::model::{Vit, VitConfig};
use crate::options::{Optimizer, Options};

/// Plans a training that needs at most `budget`, and prints the plan.
pub fn plan(
    options: &Options,
    config: &VitConfig,
    data: &Split,
    budget: Budget,
) -> Result<Plan<AdamWConfig>> {
    ensure!(
        options.optimizer == Optimizer::AdamW,
        "--fit selects formats for adamw: remove --optimizer"
    );
    let device = options.device.device().autodiff();
    let batcher = ImageBatcher {
        size: config.image_size,
        channels: config.channels,
    };
    // What can't be read is an error here; in the planner it is a panic.
    let count = usize::from(options.batch_size).min(data.train.len());
    let images: Result<Vec<_>, _> = (0..count).map(|index| data.train.get(index)).collect();
    let images = images?;
    let loss = |model: &Vit, items: usize| {
        let batch = images.iter().cycle().take(items).cloned().collect();
        model.classify(batcher.batch(batch, &device)).loss
    };
    let clipping = options.clip_norm.map(GlobalNormClippingConfig::Exact);
    let planner = Planner::new(|| config.init(&device), options.adamw())
        .with_batch(options.batch_size.into())
        .with_config(FusedConfig::new().with_clipping(clipping))
        .with_progress(|tried| println!("trying: {tried}"));
    let plan = planner.plan(loss, budget)?;
    println!("{plan}");
    Ok(plan)
}
