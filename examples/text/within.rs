//! Which layers to run twice for a budget of memory.

use anyhow::Result;
use backburn::memory::MemoryRecorder;
use backburn::{FusedConfig, FusedOptimizer, GradientCheckpointingConfig};
use burn::prelude::*;

use crate::formats::Formats;
use crate::model::{LanguageModel, LanguageModelConfig};
use crate::technique::{Place, Technique, optimizer};

/// Chooses the blocks to run twice so that steps on such a `batch` take no more than `budget` bytes,
/// model and optimizer included, and prints how many keep their activations. Trains a model for that
/// which is not used further.
pub fn choose(
    config: &LanguageModelConfig,
    budget: usize,
    formats: Formats,
    batch: &Tensor<2, Int>,
) -> Result<GradientCheckpointingConfig> {
    let model = config.init(&Technique::Block.device(Place::default()));
    let mut fused = FusedOptimizer::new(formats.cast(model), optimizer(formats));
    let loss = |model: &LanguageModel| model.losses(batch.clone()).total;
    // The first step allocates the state of the optimizer.
    fused.step(0.0, loss);
    let recorder = MemoryRecorder::start()?;
    fused.step(0.0, loss);
    let chosen = GradientCheckpointingConfig::for_budget(&recorder.finish()?, budget)?;

    let kept = chosen.keep_activations.iter().filter(|keep| **keep).count();
    let blocks = chosen.keep_activations.len();
    let mut fused =
        fused.with_config(FusedConfig::new().with_gradient_checkpointing(chosen.clone()));
    let recorder = MemoryRecorder::start()?;
    fused.step(0.0, loss);
    println!(
        "{kept} of {blocks} blocks keep their activations: {:.0} MB",
        recorder.finish()?.peak().bytes.total() as f64 / 1e6
    );
    Ok(chosen)
}
