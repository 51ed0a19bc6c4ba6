//! Saving a training, and going on with it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::optim::OptimizerRecord;
use burn::prelude::*;
use burn::store::ModuleRecord;
use serde::{Deserialize, Serialize};

use crate::model::LanguageModelConfig;
use crate::tokens::Vocabulary;
use crate::train::Course;
use crate::trainer::Trainer;

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const STATE: &str = "state.json";

/// What is told beside the weights.
#[derive(Serialize, Deserialize, Debug)]
struct State {
    config: LanguageModelConfig,
    vocabulary: Vocabulary,
    steps: usize,
}

/// Writes model, optimizer and the number of steps to `folder`. What is there is replaced when all of it is written.
pub fn save(
    folder: &Path,
    trainer: &Trainer,
    config: &LanguageModelConfig,
    vocabulary: Vocabulary,
    steps: usize,
) -> Result<()> {
    let beside = match folder.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(beside)?;
    let new = tempfile::tempdir_in(beside)?;
    trainer.model().save_file(new.path().join(MODEL))?;
    trainer.to_record().save(new.path().join(OPTIMIZER))?;
    let state = State {
        config: config.clone(),
        vocabulary,
        steps,
    };
    std::fs::write(new.path().join(STATE), serde_json::to_vec_pretty(&state)?)?;
    let old = tempfile::tempdir_in(beside)?;
    if folder.exists() {
        std::fs::rename(folder, old.path().join("old"))?;
    }
    std::fs::rename(new.keep(), folder)
        .with_context(|| format!("the checkpoint can't be put into {}", folder.display()))
}

/// Loads what was saved in `folder` into `trainer`, of a model of `config`; returns the number of steps made.
///
/// # Errors
///
/// If there is none, or one of another model.
pub fn resume(
    folder: &Path,
    trainer: Trainer,
    config: &LanguageModelConfig,
    vocabulary: Vocabulary,
    course: Course,
) -> Result<(Trainer, usize)> {
    let name = folder.display();
    let state = std::fs::read(folder.join(STATE))
        .with_context(|| format!("there is no checkpoint in {name}"))?;
    let state: State = serde_json::from_slice(&state)
        .with_context(|| format!("{STATE} of the checkpoint in {name} can't be read"))?;
    ensure!(
        state.vocabulary == vocabulary,
        "the checkpoint in {name} was trained on the tokens of {:?}, and {vocabulary:?} was asked for: choose with `--vocabulary`",
        state.vocabulary
    );
    // How it is trained may change.
    let saved = state
        .config
        .with_recompute_layers(config.recompute_layers)
        .with_chunk_size(config.chunk_size);
    ensure!(
        saved == *config,
        "the checkpoint in {name} is of a model of another size: {saved}, and asked for was {config}: choose with `--preset`"
    );
    ensure!(
        state.steps < course.steps,
        "the checkpoint in {name} has made {} steps: ask for more of them with `--steps`",
        state.steps
    );
    let record = ModuleRecord::load(folder.join(MODEL))
        .with_context(|| format!("{MODEL} of the checkpoint in {name} can't be read"))?;
    let mut trainer = trainer
        .try_load(record)
        .with_context(|| format!("the model of the checkpoint in {name} does not fit"))?;
    let record = OptimizerRecord::load(folder.join(OPTIMIZER))
        .with_context(|| format!("{OPTIMIZER} of the checkpoint in {name} can't be read"))?;
    trainer.load_record(record)?;
    Ok((trainer, state.steps))
}
