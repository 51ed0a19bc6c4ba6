//! Checkpoints of a training.

use std::fmt::Debug;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use backburn::optim::AdamWConfig;
use backburn::{Budget, Checkpoint, Plan, Progress};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::fit;
use crate::formats::Formats;
use crate::model::LanguageModelConfig;
use crate::optimizer::Optimizer;
use crate::tokens::Vocabulary;
use crate::trainer::Trainer;

/// Identity of a training, which a resumed one must match.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Training {
    pub config: LanguageModelConfig,
    pub vocabulary: Vocabulary,
    pub formats: Formats,
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Decay of an average of the weights.
    #[serde(default)]
    pub ema: Option<f64>,
    /// Number of tokens of the text.
    pub tokens: usize,
    /// Checksum of the text.
    pub checksum: u32,
    pub seed: u64,
    pub batch: usize,
    /// Total number of steps.
    pub steps: usize,
    pub learning_rate: f64,
    /// Plan of a training within a memory budget.
    pub plan: Option<Plan<AdamWConfig>>,
}

/// Returns the plan of the training in `folder`, if it has a plan that fits `budget`.
pub fn plan(
    folder: &Path,
    budget: Option<Budget>,
    device: &Device,
) -> Result<Option<Plan<AdamWConfig>>> {
    let saved: Progress<Training> = Checkpoint::at(folder).progress()?;
    let plan = fit::resumed(saved.user_data.plan, budget, device);
    plan.with_context(|| of(folder))
}

fn of(folder: &Path) -> String {
    format!("the checkpoint in {}", folder.display())
}

/// Returns an error if the checkpoint of `stop` steps can't be saved in `folder`, if it would replace a checkpoint other than that in
/// the folder `resumed`, or if there is one of more steps, which would be loaded instead of it.
pub fn check(folder: &Path, resumed: Option<&Path>, stop: usize) -> Result<()> {
    let checkpoint = Checkpoint::at(folder);
    let checked = checkpoint.check();
    checked.context("the folder can't be written: pass another folder to `--save`")?;
    let Some(last) = checkpoint.steps()?.pop() else {
        return Ok(());
    };
    let is_resumed = resumed.is_some_and(|resumed| {
        let paths = [folder, resumed].map(std::fs::canonicalize);
        matches!(&paths, [Ok(folder), Ok(resumed)] if folder == resumed)
    });
    ensure!(
        is_resumed && last <= stop as u64,
        "{} already has {last} steps: pass another folder to `--save`{}",
        of(folder),
        match is_resumed {
            true => "",
            false => ", or resume the training with `--resume`",
        }
    );
    Ok(())
}

/// Saves model, optimizer and identity of the training in `folder`, after `done` steps, and removes earlier checkpoints.
pub fn save(folder: &Path, trainer: &Trainer, training: &Training, done: usize) -> Result<()> {
    let progress = Progress::new(done as u64).with_user_data(training.clone());
    trainer.save(&Checkpoint::at(folder).keep_last(1), &progress)
}

/// Loads the checkpoint in `folder` into `trainer`, of the same `training`. Returns the number of steps made.
///
/// # Errors
///
/// If there is none, or one of another training.
pub fn resume(folder: &Path, trainer: Trainer, training: &Training) -> Result<(Trainer, usize)> {
    let checkpoint = Checkpoint::at(folder);
    let saved: Progress<Training> = checkpoint.progress()?;
    saved
        .user_data
        .check(training)
        .with_context(|| of(folder))?;
    ensure!(
        saved.step < training.steps as u64,
        "{} has completed all of its {} steps",
        of(folder),
        saved.step
    );
    let (trainer, progress) = trainer.resume::<Training>(&checkpoint)?;
    Ok((trainer, progress.step.try_into()?))
}

impl Training {
    /// Returns an error for another training, with the option that differs.
    fn check(&self, asked: &Self) -> Result<()> {
        let techniques = |it: &Self| (it.config.recompute_layers, it.config.loss_chunk);
        // They may change, unless the training was planned.
        let config = self
            .config
            .clone()
            .with_recompute_layers(asked.config.recompute_layers)
            .with_loss_chunk(asked.config.loss_chunk);
        let same = |option: &str, saved: &dyn Debug, asked: &dyn Debug| {
            let (saved, asked) = (format!("{saved:?}"), format!("{asked:?}"));
            ensure!(
                saved == asked,
                "is of another training: it has {saved}, but {asked} was requested. Set {option}"
            );
            Ok(())
        };
        same("`--vocabulary`", &self.vocabulary, &asked.vocabulary)?;
        same(
            "`--preset`, `--context` and `--tied`",
            &config,
            &asked.config,
        )?;
        if self.plan.is_some() {
            same("`--technique`", &techniques(self), &techniques(asked))?;
        }
        same("`--weights` and `--states`", &self.formats, &asked.formats)?;
        same("`--optimizer`", &self.optimizer, &asked.optimizer)?;
        same("`--ema`", &self.ema, &asked.ema)?;
        same("`--text` (number of tokens)", &self.tokens, &asked.tokens)?;
        same("`--text` (checksum)", &self.checksum, &asked.checksum)?;
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
