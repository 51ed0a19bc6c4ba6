//! Saving a training, and going on with it.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn::optim::OptimizerRecord;
use burn::prelude::*;
use burn::store::ModuleRecord;
use serde::{Deserialize, Serialize};

use crate::formats::Formats;
use crate::model::LanguageModelConfig;
use crate::tokens::Vocabulary;
use crate::trainer::Trainer;

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const STATE: &str = "state.json";

/// What a training is of: it goes on with the same only.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Training {
    pub config: LanguageModelConfig,
    pub vocabulary: Vocabulary,
    pub formats: Formats,
    /// Number of tokens of the text.
    pub tokens: usize,
    pub seed: u64,
    pub batch: usize,
    /// Steps in all.
    pub steps: usize,
}

/// What is told beside the weights.
#[derive(Serialize, Deserialize, Debug)]
struct State {
    training: Training,
    done: usize,
}

/// Refuses a `folder` that nothing can be saved in, or that holds something else than a checkpoint.
pub fn check(folder: &Path) -> Result<()> {
    let name = folder.display();
    let is_free = std::fs::symlink_metadata(folder).is_err();
    ensure!(
        is_free || folder.join(STATE).is_file(),
        "{name} is there already, and no checkpoint: name another folder with `--save`"
    );
    ensure!(
        folder.file_name().is_some(),
        "{name} is no name for a folder: give one with `--save`"
    );
    let beside = beside(folder);
    std::fs::create_dir_all(&beside)
        .and_then(|()| tempfile::tempdir_in(&beside))
        .with_context(|| format!("nothing can be saved in {}", beside.display()))?;
    Ok(())
}

/// The folder that `folder` is in.
fn beside(folder: &Path) -> PathBuf {
    match folder.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Writes model, optimizer and what the training is of to `folder`, after `done` steps. A checkpoint that is there is replaced when all of it is
/// written.
pub fn save(folder: &Path, trainer: &Trainer, training: &Training, done: usize) -> Result<()> {
    check(folder)?;
    let name = folder.display();
    let new = tempfile::tempdir_in(beside(folder))?;
    trainer.model().save_file(new.path().join(MODEL))?;
    trainer.to_record().save(new.path().join(OPTIMIZER))?;
    let training = training.clone();
    let state = serde_json::to_vec_pretty(&State { training, done })?;
    std::fs::write(new.path().join(STATE), state)?;
    // Kept until the new one is in its place.
    let old = folder.with_extension("old");
    let replaces = folder.exists();
    if replaces {
        std::fs::rename(folder, &old)
            .with_context(|| format!("the checkpoint in {name} can't be replaced"))?;
    }
    let new = new.keep();
    std::fs::rename(&new, folder).with_context(|| {
        format!(
            "the new checkpoint can't go from {} to {name}",
            new.display()
        )
    })?;
    if replaces {
        std::fs::remove_dir_all(&old)?;
    }
    Ok(())
}

/// Loads what was saved in `folder` into `trainer`, of the same `training`; returns the number of steps made.
///
/// # Errors
///
/// If there is none, or one of another training.
pub fn resume(folder: &Path, trainer: Trainer, training: &Training) -> Result<(Trainer, usize)> {
    let name = folder.display();
    let state = std::fs::read(folder.join(STATE))
        .with_context(|| format!("there is no checkpoint in {name}"))?;
    let State {
        training: saved,
        done,
    } = serde_json::from_slice(&state)
        .with_context(|| format!("{STATE} of the checkpoint in {name} can't be read"))?;
    saved
        .check(training)
        .with_context(|| format!("the checkpoint in {name}"))?;
    ensure!(
        done < training.steps,
        "the checkpoint in {name} has made all of its {done} steps"
    );
    let record = ModuleRecord::load(folder.join(MODEL))
        .with_context(|| format!("{MODEL} of the checkpoint in {name} can't be read"))?;
    let mut trainer = trainer
        .try_load(record)
        .with_context(|| format!("the model of the checkpoint in {name} does not fit"))?;
    let record = OptimizerRecord::load(folder.join(OPTIMIZER))
        .with_context(|| format!("{OPTIMIZER} of the checkpoint in {name} can't be read"))?;
    trainer.load_record(record)?;
    Ok((trainer, done))
}

impl Training {
    /// Refuses another training, by the option that tells it from this one.
    fn check(&self, asked: &Self) -> Result<()> {
        // How it is trained may change.
        let config = self
            .config
            .clone()
            .with_recompute_layers(asked.config.recompute_layers)
            .with_chunk_size(asked.config.chunk_size);
        let same = |option: &str, saved: &dyn Debug, asked: &dyn Debug| {
            let (saved, asked) = (format!("{saved:?}"), format!("{asked:?}"));
            ensure!(
                saved == asked,
                "is of another training: {saved}, and {asked} was asked for; choose with {option}"
            );
            Ok(())
        };
        same("`--vocabulary`", &self.vocabulary, &asked.vocabulary)?;
        same(
            "`--preset`, `--context` and `--tied`",
            &config,
            &asked.config,
        )?;
        same("`--weights` and `--states`", &self.formats, &asked.formats)?;
        same("`--text`, of so many tokens", &self.tokens, &asked.tokens)?;
        same("`--seed`", &self.seed, &asked.seed)?;
        same("`--batch-size`", &self.batch, &asked.batch)?;
        same("`--steps`", &self.steps, &asked.steps)
    }
}
