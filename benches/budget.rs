//! Memory and time of fused training whose recomputed blocks are chosen for a budget.
//!
//! ```sh
//! cargo bench --bench budget
//! ```
//!
//! ViT-S/16, eight images a step, Adam in f32 on the CPU, `gradient_checkpointing` around each of the 12 blocks. One
//! step with all of them recomputed is recorded; for every row `GradientCheckpointingConfig::for_budget` then
//! chooses the blocks to recompute within a budget, and a step is recorded again. Budget and peak are
//! in multiples of the bytes of the parameters (P), model and optimizer included. `kept` counts the
//! blocks that keep their activations. `time` is that of a step, unrecorded, in multiples of one with
//! all blocks recomputed: the median over rounds in which the rows take turns.

mod network;

use std::error::Error;
use std::time::Instant;

use backburn::memory::{MemoryRecorder, MemoryTimeline, RecordingAllocator, keep_pages};
use backburn::{FusedConfig, FusedOptimizer, GradientCheckpointingConfig};
use burn::optim::AdamConfig;
use burn::prelude::*;
use burn::tensor::Distribution;

use network::Network;
use network::vit::{Vit, VitConfig};

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();

const BATCH: usize = 8;
const ROUNDS: usize = 7;

/// A training that continues while its blocks change.
struct Training {
    fused: FusedOptimizer<Vit>,
    input: Tensor<4>,
}

impl Training {
    /// Makes one step. Returns its seconds.
    fn step(&mut self) -> f64 {
        let start = Instant::now();
        let input = self.input.clone();
        self.fused.step(1e-4, |model| model.loss(input)).unwrap();
        start.elapsed().as_secs_f64()
    }

    /// Makes one step. Returns its memory.
    fn record(&mut self) -> Result<MemoryTimeline, Box<dyn Error>> {
        let recorder = MemoryRecorder::start()?;
        self.step();
        Ok(recorder.finish()?)
    }

    fn with(mut self, config: &GradientCheckpointingConfig) -> Self {
        self.fused = self
            .fused
            .with_config(FusedConfig::new().with_gradient_checkpointing(config.clone()))
            .unwrap();
        self
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    keep_pages();
    let device = Device::flex().autodiff();
    let config = VitConfig::vit_s_16().with_recompute_blocks(true);
    let shape = [BATCH, config.channels, config.image_size, config.image_size];
    let recorder = MemoryRecorder::start()?;
    let input = Tensor::<4>::random(shape, Distribution::Default, &device);
    let before = recorder.finish()?.samples[0].bytes.total();

    let model = config.init(&device);
    let parameters = size_of::<f32>() * model.num_params();
    let in_p = |bytes: usize| (bytes - before) as f64 / parameters as f64;
    let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let mut training = Training { fused, input };
    training.step();
    let all = training.record()?;
    let least = all.peak().bytes.total();

    let mut rows = Vec::new();
    for extra in 0..=4 {
        let budget = least + 2 * extra * parameters;
        let config = GradientCheckpointingConfig::for_budget(&all, budget)?;
        training = training.with(&config);
        let peak = training.record()?.peak().bytes.total();
        rows.push((config, budget, peak));
    }
    // The baseline is a row of its own.
    let mut times = vec![Vec::new(); rows.len() + 1];
    for _ in 0..ROUNDS {
        let chosen = rows.iter().map(|(config, ..)| config.clone());
        let chosen = std::iter::once(GradientCheckpointingConfig::new()).chain(chosen);
        for (config, times) in chosen.zip(&mut times) {
            training = training.with(&config);
            times.push(training.step());
        }
    }
    let mut medians = times.into_iter().map(median);
    let recomputed = medians.next().unwrap_or(f64::NAN);

    println!(
        "all blocks recomputed: {:.2} P, {recomputed:.2} s",
        in_p(least)
    );
    println!(
        "{:>12}{:>10}{:>10}{:>10}",
        "budget/P", "kept", "peak/P", "time"
    );
    for ((config, budget, peak), time) in rows.into_iter().zip(medians) {
        let kept = config.keep_activations.iter().filter(|keep| **keep).count();
        println!(
            "{:>12.2}{kept:>10}{:>10.2}{:>10.2}",
            in_p(budget),
            in_p(peak),
            time / recomputed
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
