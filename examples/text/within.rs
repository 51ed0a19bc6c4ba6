//! Which layers to run twice for a budget of memory.

use anyhow::Result;
use backburn::memory::MemoryRecorder;
use backburn::{FusedOptimizer, GradientCheckpointingConfig};
use burn::prelude::*;

use crate::formats::Formats;
use crate::model::TransformerConfig;
use crate::technique::{Place, Technique, optimizer};

/// Chooses the layers to run twice so that steps on such a `batch` take no more than `budget` bytes,
/// model and optimizer included, and prints how many keep their activations. Trains a model for that
/// which is not used further.
pub fn choose(
    config: &TransformerConfig,
    budget: usize,
    batch: &Tensor<2, Int>,
) -> Result<GradientCheckpointingConfig> {
    let config = config.clone().with_recompute_layers(true);
    let model = config.init(&Technique::Block.device(Place::default()));
    let mut fused = FusedOptimizer::new(model, optimizer(Formats::default()));
    // The first step allocates the state of the optimizer.
    fused.step(0.0, |model| model.loss(batch.clone()));
    let recorder = MemoryRecorder::start()?;
    fused.step(0.0, |model| model.loss(batch.clone()));
    let chosen = GradientCheckpointingConfig::for_budget(&recorder.finish()?, budget)?;

    let kept = chosen.keep_activations.iter().filter(|keep| **keep).count();
    let mut fused = fused.with_gradient_checkpointing(chosen.clone());
    let recorder = MemoryRecorder::start()?;
    fused.step(0.0, |model| model.loss(batch.clone()));
    println!(
        "{kept} of {} layers keep their activations: {:.0} MB",
        config.depth,
        recorder.finish()?.peak().bytes.total() as f64 / 1e6
    );
    Ok(chosen)
}
