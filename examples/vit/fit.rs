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
    let loss = |model: &Vit, items: usize| {
        let images = (0..items).map(|index| data.train.get(index % data.train.len()));
        let images = images
            .collect::<Result<_, _>>()
            .expect("the images were read before");
        model.classify(batcher.batch(images, &device)).loss
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
