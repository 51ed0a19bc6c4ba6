//! Recording of training steps.

use anyhow::Result;
use backburn::FusedOptimizer;
use backburn::memory::{MemoryRecorder, MemoryTimeline};
use burn::module::{ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::Distribution;
use indicatif::{ProgressBar, ProgressStyle};

use crate::Variant;
use crate::model::{Vit, VitConfig};

const LEARNING_RATE: f64 = 1e-4;

/// Records `steps` steps on one made-up image.
pub fn record(config: &VitConfig, variant: Variant, steps: u8) -> Result<MemoryTimeline> {
    let mut device = Device::flex().autodiff();
    if variant == Variant::FusedGradientCheckpointing {
        device = device.gradient_checkpointing();
    }
    let progress = ProgressBar::new(steps.into()).with_message(variant.name());
    progress.set_style(ProgressStyle::with_template(
        "{msg:20} step {pos}/{len} {elapsed}",
    )?);
    progress.tick();

    let size = config.image_size;
    let shape = [1, config.channels, size, size];
    let image = Tensor::<4>::random(shape, Distribution::Default, &device);
    let model = config.init(&device);
    // Burn initializes a parameter when it is first read.
    model.visit(&mut Initialize);
    let loss = |model: &Vit| model.forward(image.clone()).sum();

    // The model is still allocated when the recording ends.
    let recorder = MemoryRecorder::start()?;
    if variant == Variant::Stock {
        let mut model = model;
        let mut optimizer = AdamConfig::new().init();
        recorder.parameters(&model);
        for _ in 0..steps {
            let loss = recorder.forward(|| loss(&model));
            let gradients =
                recorder.backward(|| GradientsParams::from_grads(loss.backward(), &model));
            recorder.gradients(&gradients, &model);
            model = recorder.update(|| optimizer.step(LEARNING_RATE, model, gradients));
            recorder.parameters(&model);
            progress.inc(1);
        }
        return Ok(recorder.finish()?);
    }
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init())?;
    for _ in 0..steps {
        fused.step(LEARNING_RATE, loss)?;
        progress.inc(1);
    }
    Ok(recorder.finish()?)
}

struct Initialize;

impl ModuleVisitor for Initialize {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        param.val();
    }
}
