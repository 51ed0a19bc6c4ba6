//! Saving a training, and going on with it.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn::optim::OptimizerRecord;
use burn::prelude::*;
use burn::store::ModuleRecord;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

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
    /// Of the text.
    pub checksum: u32,
    pub seed: u64,
    pub batch: usize,
    /// Steps in all.
    pub steps: usize,
    pub learning_rate: f64,
}

/// What is told beside the weights.
#[derive(Serialize, Deserialize, Debug)]
struct State {
    training: Training,
    done: usize,
    /// The folder within that of the checkpoint that model and optimizer are in.
    files: PathBuf,
}

impl State {
    fn read(folder: &Path) -> Result<Self> {
        let name = folder.display();
        let state = std::fs::read(folder.join(STATE))
            .with_context(|| format!("there is no checkpoint in {name}"))?;
        serde_json::from_slice(&state)
            .with_context(|| format!("{STATE} of the checkpoint in {name} can't be read"))
    }
}

/// Makes sure that a checkpoint can be saved in `folder`: it is new, empty, or holds one.
pub fn check(folder: &Path) -> Result<()> {
    let name = folder.display();
    std::fs::create_dir_all(folder).with_context(|| {
        format!("{name} can be no checkpoint: name another folder with `--save`")
    })?;
    let is_empty = std::fs::read_dir(folder)?.next().is_none();
    ensure!(
        is_empty || folder.join(STATE).is_file(),
        "{name} is there already, and no checkpoint: name another folder with `--save`"
    );
    tempfile::tempdir_in(folder).with_context(|| format!("nothing can be saved in {name}"))?;
    Ok(())
}

/// Writes model, optimizer and what the training is of to `folder`, after `done` steps. A checkpoint that is there stays what it is until
/// all of the new one is written.
pub fn save(folder: &Path, trainer: &Trainer, training: &Training, done: usize) -> Result<()> {
    check(folder)?;
    let before = State::read(folder).ok();
    let prefix = format!("{done}-");
    let new = tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(folder)?;
    trainer.model().save_file(new.path().join(MODEL))?;
    trainer.to_record().save(new.path().join(OPTIMIZER))?;
    let state = State {
        training: training.clone(),
        done,
        files: new.path().file_name().context("a new folder")?.into(),
    };
    let mut file = NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, &state)?;
    // At this moment it becomes the checkpoint.
    file.persist(folder.join(STATE))?;
    let _kept = new.keep();
    // Nothing outside of the folder, whatever the file says.
    if let Some(files) = before.as_ref().and_then(|before| before.files.file_name()) {
        std::fs::remove_dir_all(folder.join(files))?;
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
    let state = State::read(folder)?;
    let (done, files) = (state.done, folder.join(state.files));
    state
        .training
        .check(training)
        .with_context(|| format!("the checkpoint in {name}"))?;
    ensure!(
        done < training.steps,
        "the checkpoint in {name} has made all of its {done} steps"
    );
    let record = ModuleRecord::load(files.join(MODEL))
        .with_context(|| format!("{MODEL} of the checkpoint in {name} can't be read"))?;
    let mut trainer = trainer
        .try_load(record)
        .with_context(|| format!("the model of the checkpoint in {name} does not fit"))?;
    let record = OptimizerRecord::load(files.join(OPTIMIZER))
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
        same(
            "`--text`, of this checksum",
            &self.checksum,
            &asked.checksum,
        )?;
        same("`--seed`", &self.seed, &asked.seed)?;
        same("`--batch-size`", &self.batch, &asked.batch)?;
        same("`--steps`", &self.steps, &asked.steps)?;
        same(
            "`--learning-rate`",
            &self.learning_rate,
            &asked.learning_rate,
        )
    }
}
