//! Fine-tuning from a file of weights: all weights, and LoRA on f32 and on quantized weights.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use backburn::{
    BaseFormat, FusedConfig, MemoryEstimate, QuantizedLora, cast, load_from_store,
    load_quantized_from_store,
};
use burn::module::{Lora, ParamGroup};
use burn::prelude::*;
use burn::store::{ModuleRecord, ModuleSnapshot, PytorchStore, SafetensorsStore};
use burn::tensor::DType;
use clap::ValueEnum;
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

/// Storage of the frozen weights under LoRA's adapters.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Base {
    /// The type of training.
    Full,
    /// Codes of 8 bits.
    #[value(name = "8")]
    Bits8,
    /// Codes of 4 bits.
    #[value(name = "4")]
    Bits4,
}

/// Trained part of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    Nothing,
    Lora(Base),
    All,
}

impl Share {
    const ALL: [(Self, &str); 5] = [
        (Self::Nothing, "nothing"),
        (Self::Lora(Base::Full), "LoRA"),
        (Self::Lora(Base::Bits8), "LoRA on 8 bits"),
        (Self::Lora(Base::Bits4), "LoRA on 4 bits"),
        (Self::All, "all"),
    ];
}

/// Returns the configuration of the adapters.
fn lora() -> Lora {
    let layers = ParamGroup::from_predicate("layers.");
    Lora::new(RANK, 2.0 * RANK as f64).set_param_group(layers)
}

/// Trains a model on the plays, unless there are weights to start from. Then fine-tunes it on pages of this project and prints
/// cost and result.
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
        "{:<16}{:>16}{:>12}{:>12}{:>10}{:>16}",
        "", "trained", "model (MB)", "peak (MB)", "seconds", "held-out loss"
    );
    let is_chosen = |share| match (options.base, share) {
        (Some(base), Share::Lora(other)) => base == other,
        (Some(_), Share::All) => false,
        _ => true,
    };
    for (share, name) in Share::ALL
        .into_iter()
        .filter(|(share, _)| is_chosen(*share))
    {
        let before = bytes.current_usage();
        bytes.reset_peak_usage();
        let tuned = tune(options, &config, &path, share, bytes)?;
        println!(
            "{name:<16}{:>16}{:>12.2}{:>12.1}{:>10.1}{:>16.3}",
            tuned.trained,
            tuned.model as f64 / 1e6,
            (bytes.peak_usage() - before) as f64 / 1e6,
            tuned.seconds,
            tuned.loss
        );
    }
    Ok(())
}

/// Cost and result of a fine-tuning.
struct Tuned {
    /// Number of trained parameters.
    trained: usize,
    /// Bytes of all parameters.
    model: usize,
    /// Seconds of the training.
    seconds: f64,
    /// Loss on the held-out text.
    loss: f64,
}

/// Trains a model on the plays.
fn pretrain(
    options: &Options,
    config: &LanguageModelConfig,
    bytes: &PeakAlloc,
) -> Result<LanguageModel> {
    let device = options.technique.device(Place::default());
    device.seed(options.seed);
    let mut text = Text::new(&plays()?, options.vocabulary, config.context, options.seed)?;
    let mut trainer = options.technique.start(config, Place::default())?;
    train(
        &mut trainer,
        &mut text,
        options.schedule(config),
        &device,
        bytes,
    )?;
    Ok(trainer.model())
}

/// Fine-tunes a `share` of the weights in the file at `path` on the pages.
fn tune(
    options: &Options,
    config: &LanguageModelConfig,
    path: &Path,
    share: Share,
    bytes: &PeakAlloc,
) -> Result<Tuned> {
    let device = options.technique.device(Place::default());
    device.seed(options.seed);
    // The same batches for every share.
    let mut text = Text::new(PAGES, options.vocabulary, config.context, options.seed)?;
    let model = config.init(&device);
    let model = match share {
        Share::Nothing => load(model, path, options)?.freeze(),
        Share::All => load(model, path, options)?,
        Share::Lora(Base::Full) => load(model, path, options)?.apply_lora(lora()),
        Share::Lora(Base::Bits8) => load_in_codes(model, path, options, BaseFormat::Bits8)?,
        Share::Lora(Base::Bits4) => load_in_codes(model, path, options, BaseFormat::Bits4)?,
    };
    let optimizer = Optimizer::AdamW.init(options.formats);
    let estimate = MemoryEstimate::new(&model, &optimizer);
    let start = Instant::now();
    let mut trainer = Trainer::fused(model, optimizer, FusedConfig::new(), &device)?;
    if estimate.gradients > 0 {
        let mut schedule = options.schedule(config);
        schedule.steps = schedule.steps.div_ceil(FEWER);
        schedule.stop = schedule.steps;
        schedule.learning_rate /= 3.0;
        train(&mut trainer, &mut text, schedule, &device, bytes)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let size = config.vocabulary;
    let batch = options.batch();
    let held_out = HeldOut::measure(
        &trainer.valid(&device),
        &text,
        size,
        batch,
        HeldOut::PIECES,
        &device,
    );
    Ok(Tuned {
        trained: estimate.gradients / DType::from(options.formats.dtype()).size(),
        model: estimate.parameters,
        seconds,
        loss: held_out.loss,
    })
}

/// Loads the weights in the file at `path` into `model`; those of the layers are quantized under adapters.
fn load_in_codes(
    model: LanguageModel,
    path: &Path,
    options: &Options,
    format: BaseFormat,
) -> Result<LanguageModel> {
    let lora = QuantizedLora::new(lora(), format);
    if path
        .extension()
        .is_some_and(|extension| extension == "safetensors")
    {
        let (store, dtype) = (SafetensorsStore::from_file, options.formats.dtype());
        return Ok(load_quantized_from_store(model, path, store, dtype, lora)?.0);
    }
    Ok(load(model, path, options)?.apply_reparameterization(lora))
}

/// Loads the weights in the file at `path` into `model`, in the type of the training.
fn load(model: LanguageModel, path: &Path, options: &Options) -> Result<LanguageModel> {
    let dtype = options.formats.dtype();
    let name = path.display();
    let loaded = match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => load_from_store(model, path, SafetensorsStore::from_file, dtype),
        Some("pt" | "pth" | "bin") => load_from_store(model, path, PytorchStore::from_file, dtype),
        Some("bpk") => {
            let record = ModuleRecord::load(path).with_context(|| format!("in {name}"))?;
            let loaded = cast(model, dtype)?.try_load_record(record.cast_to_module_dtype());
            return loaded.with_context(|| format!("in {name}"));
        }
        _ => bail!(
            "{name} is not a file of safetensors (.safetensors), of PyTorch (.pt, .pth, .bin) or of Burn (.bpk)"
        ),
    };
    let (model, applied) = loaded?;
    ensure!(
        applied.unused.is_empty(),
        "{name} has tensors that the model does not use: {}; set its size with `--preset` and `--tied`",
        applied.unused.join(", ")
    );
    Ok(model)
}
