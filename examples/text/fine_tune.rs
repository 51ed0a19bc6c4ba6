//! Fine-tuning from a file of weights: all of them, and LoRA.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use backburn::{
    FusedConfig, GradientCheckpointingConfig, MemoryEstimate, load_from_store, load_record_in,
};
use burn::module::{Lora, ParamGroup};
use burn::prelude::*;
use burn::store::{ModuleRecord, ModuleSnapshot, PytorchStore, SafetensorsStore};
use burn::tensor::DType;
use peak_alloc::PeakAlloc;

use crate::model::{LanguageModel, LanguageModelConfig};
use crate::optimizer::Optimizer;
use crate::options::Options;
use crate::technique::{Place, Technique};
use crate::text::{PAGES, Text, plays};
use crate::train::{HeldOut, train};
use crate::trainer::Trainer;

const RANK: usize = 8;
/// Fine-tuning takes a quarter of the steps, at a third of the rate.
const FEWER: usize = 4;

/// What is trained of a model.
#[derive(Clone, Copy, Debug)]
enum Share {
    Nothing,
    Lora,
    All,
}

/// Trains a model on the plays, unless there are weights to start from; then goes on with it on pages of this project and prints what that
/// takes, and what it gives.
pub fn compare(options: &Options, config: &LanguageModelConfig, bytes: &PeakAlloc) -> Result<()> {
    ensure!(
        options.technique != Technique::Stock,
        "`--fine-tune` compares fused training: choose another `--technique` than `stock`"
    );
    let config = options.technique.applied_to(config);
    let folder = tempfile::tempdir()?;
    let path = match &options.from {
        Some(path) => path.clone(),
        None => {
            let path = folder.path().join("plays.safetensors");
            pretrain(options, &config, bytes)?
                .save_into(&mut SafetensorsStore::from_file(&path))?;
            path
        }
    };
    println!(
        "{:<10}{:>16}{:>12}{:>16}",
        "", "trained", "peak (MB)", "held-out loss"
    );
    for share in [Share::Nothing, Share::Lora, Share::All] {
        let before = bytes.current_usage();
        bytes.reset_peak_usage();
        let (trained, loss) = tune(options, &config, &path, share, bytes)?;
        println!(
            "{:<10}{trained:>16}{:>12.1}{loss:>16.3}",
            format!("{share:?}"),
            (bytes.peak_usage() - before) as f64 / 1e6
        );
    }
    Ok(())
}

/// A model that has learned the plays.
fn pretrain(
    options: &Options,
    config: &LanguageModelConfig,
    bytes: &PeakAlloc,
) -> Result<LanguageModel> {
    let device = options.technique.device(Place::default());
    device.seed(options.seed);
    let mut text = Text::new(&plays()?, options.vocabulary, config.context, options.seed)?;
    let checkpointing = GradientCheckpointingConfig::new();
    let mut trainer = options
        .technique
        .start(config, checkpointing, Place::default());
    train(
        &mut trainer,
        &mut text,
        options.course(config),
        &device,
        bytes,
    )?;
    Ok(trainer.model())
}

/// Fine-tunes a `share` of the weights in the file at `path` on the pages. Returns how many parameters were trained, and the loss on
/// what is held out of them.
fn tune(
    options: &Options,
    config: &LanguageModelConfig,
    path: &Path,
    share: Share,
    bytes: &PeakAlloc,
) -> Result<(usize, f64)> {
    let device = options.technique.device(Place::default());
    device.seed(options.seed);
    // The same batches for every share.
    let mut text = Text::new(PAGES, options.vocabulary, config.context, options.seed)?;
    let model = load(config.init(&device), path, options)?;
    let model = match share {
        Share::Nothing => model.freeze(),
        Share::All => model,
        Share::Lora => {
            let layers = ParamGroup::from_predicate("layers.");
            model.apply_lora(Lora::new(RANK, 2.0 * RANK as f64).set_param_group(layers))
        }
    };
    let optimizer = Optimizer::AdamW.init(options.formats);
    let gradients = MemoryEstimate::new(&model, &optimizer).gradients;
    let mut trainer = Trainer::fused(model, optimizer, FusedConfig::new(), &device);
    if gradients > 0 {
        let mut course = options.course(config);
        course.steps = course.steps.div_ceil(FEWER);
        course.stop = course.steps;
        course.learning_rate /= 3.0;
        train(&mut trainer, &mut text, course, &device, bytes)?;
    }
    let size = config.vocabulary;
    let batch = options.batch();
    let held_out = HeldOut::measure(
        &trainer.valid(),
        &text,
        size,
        batch,
        HeldOut::PIECES,
        &device,
    );
    let trained = gradients / DType::from(options.formats.dtype()).size();
    Ok((trained, held_out.loss))
}

/// `model` with the weights in the file at `path`, in the type in which they are trained.
fn load(model: LanguageModel, path: &Path, options: &Options) -> Result<LanguageModel> {
    let dtype = options.formats.dtype();
    let name = path.display();
    let loaded = match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => load_from_store(model, path, SafetensorsStore::from_file, dtype),
        Some("pt" | "pth" | "bin") => load_from_store(model, path, PytorchStore::from_file, dtype),
        Some("bpk") => {
            let record = ModuleRecord::load(path).with_context(|| format!("in {name}"))?;
            return load_record_in(model, record, dtype).with_context(|| format!("in {name}"));
        }
        _ => bail!(
            "{name} is no file of safetensors (.safetensors), of PyTorch (.pt, .pth, .bin) or of Burn (.bpk)"
        ),
    };
    let (model, applied) = loaded?;
    ensure!(
        applied.unused.is_empty(),
        "{name} has tensors that the model has no place for: {}; choose its size with `--preset` and `--tied`",
        applied.unused.join(", ")
    );
    Ok(model)
}
