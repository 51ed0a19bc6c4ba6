//! Contents of a checkpoint in addition to model and optimizer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use backburn::optim::{AdamWConfig, compact_records};
use backburn::{Checkpoint, CheckpointError, FusedOptimizer, Plan, Progress};
use burn::store::{IdentityAdapter, PathFilter};
use serde::{Deserialize, Serialize};

use crate::adapters;
use crate::chat::TOOL_USE_FILE;
use crate::checksum::checksum;
use crate::data::Data;
use crate::decoder::Decoder;
use crate::names;
use crate::options::Options;
use crate::output::Finished;
use crate::tensor_file::check_finite;
use crate::weights;

/// Files of the base, other than its weights, that a training depends on.
const READ: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The setting that a date in the text of chats changes.
const ROWS: &str = "--data, checksum of the rows";

/// Identity of a training, and its state so far. It resumes only with the same identity.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Saved {
    settings: Settings,
    /// Steps of the whole training.
    pub steps: usize,
    /// Plan for the memory budget, if there is one.
    pub plan: Option<Plan<AdamWConfig>>,
    /// Bytes before the first step, with the buffers of threads that planning has allocated.
    pub held: Option<usize>,
    /// Loss on the rows that are held out before the training.
    pub loss_before: Option<f64>,
    /// The lowest loss of a checkpoint on these rows.
    pub best: Option<Best>,
}

/// The checkpoint with the lowest loss.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Best {
    pub step: usize,
    pub loss: f64,
    /// Number of later checkpoints.
    pub later: usize,
}

/// Options and their values, and checksums of the files that they name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    pub fn new(options: &Options, data: &Data) -> Result<Self> {
        let mut settings = Self(Vec::new());
        let mut files = weights::files(&options.model)?;
        files.extend(READ.map(|name| options.model.join(name)));
        let tool_use = options.model.join(TOOL_USE_FILE);
        files.extend(Some(tool_use).filter(|file| file.exists()));
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            settings.push(&format!("--model, {name}"), checksum(&file)?);
        }
        settings.push("--length", data.rows.length());
        settings.push("--pad", options.pad);
        settings.push("--held-out", options.held_out);
        // Before the rows, which the seed selects.
        settings.push("--seed", options.seed);
        settings.push(ROWS, data.rows.checksum());
        let held_out = data.held_out.checksum();
        settings.push(
            "--data or --validation, checksum of the rows held out",
            held_out,
        );
        settings.push("--batch", options.batch);
        // Before the options whose defaults depend on it.
        settings.push("--method", format!("{:?}", options.method));
        settings.push("--learning-rate", options.learning_rate());
        settings.push("--warm-up", options.warm_up);
        settings.push("--weight-decay", options.weight_decay);
        settings.push("--clip", options.clip);
        settings.push("--weights", format!("{:?}", options.weights));
        settings.push("--states", format!("{:?}", options.states));
        if options.method.has_adapters() {
            let adapters = options.adapters();
            settings.push("--rank", adapters.rank);
            settings.push("--alpha", adapters.alpha);
            settings.push("--targets", adapters.targets.join(","));
        }
        if let Some(folder) = &options.adapters {
            settings.push("--adapters", checksum(&folder.join(adapters::WEIGHTS))?);
        }
        Ok(settings)
    }

    fn push(&mut self, option: &str, value: impl ToString) {
        self.0.push((option.to_owned(), value.to_string()));
    }
}

impl Saved {
    pub fn new(settings: Settings, steps: usize) -> Self {
        Self {
            settings,
            steps,
            plan: None,
            held: None,
            loss_before: None,
            best: None,
        }
    }

    /// Records the loss of a checkpoint; returns `true` if it is the lowest.
    pub fn record(&mut self, step: usize, loss: f64) -> bool {
        let is_lowest = self.best.is_none_or(|best| loss < best.loss);
        self.best = match self.best {
            Some(best) if !is_lowest => Some(Best {
                later: best.later + 1,
                ..best
            }),
            _ => Some(Best {
                step,
                loss,
                later: 0,
            }),
        };
        is_lowest
    }

    /// Returns `true` if the last `patience` checkpoints have no lower loss.
    pub fn is_over(&self, patience: Option<usize>) -> bool {
        let later = self.best.map_or(0, |best| best.later);
        patience.is_some_and(|patience| later >= patience)
    }

    /// Returns the identity of this training after its last step, with files in `format`.
    pub fn finished(&self, format: String) -> Finished {
        Finished {
            settings: self.settings.clone(),
            steps: self.steps,
            format,
        }
    }

    /// Returns an error if `other` is another training than the one saved here: it names the option. More steps are the same training.
    pub fn check(&self, other: &Self, folder: &Path) -> Result<()> {
        let refused = |option: &str, saved: &str, asked: &str| {
            let advice = match option {
                ROWS => {
                    ". If the chat template writes the date of today, set `SOURCE_DATE_EPOCH` to 12:00 UTC of the first day, in seconds \
                     since 1970, to resume"
                }
                _ => "",
            };
            anyhow!(
                "the checkpoint in {} is of another training: `{option}` was {saved} and is {asked}. Name another folder with \
                 `--output`, or remove the folder {0}{advice}",
                folder.display()
            )
        };
        for (option, asked) in &other.settings.0 {
            let saved = self.settings.0.iter().find(|(name, _)| name == option);
            let saved = saved.map_or("unset", |(_, value)| value.as_str());
            if saved != asked {
                return Err(refused(option, saved, asked));
            }
        }
        let unset = |name: &str| other.settings.0.iter().all(|(asked, _)| asked != name);
        if let Some((name, saved)) = self.settings.0.iter().find(|(name, _)| unset(name)) {
            return Err(refused(name, saved, "unset"));
        }
        if other.steps < self.steps {
            let [saved, asked] = [self.steps, other.steps].map(|steps| steps.to_string());
            return Err(refused("--epochs or --steps", &saved, &asked));
        }
        Ok(())
    }
}

/// The checkpoints of a training, in a folder in its output.
pub struct Checkpoints {
    checkpoint: Checkpoint,
    has_adapters: bool,
    pub folder: PathBuf,
}

impl Checkpoints {
    pub fn of(options: &Options) -> Self {
        Self::at(options.output.join("checkpoints"), options).keep_last(options.keep_last)
    }

    /// Returns the checkpoint with the lowest loss.
    pub fn best(options: &Options) -> Self {
        Self::at(options.output.join("checkpoints/best"), options).keep_last(1)
    }

    fn at(folder: PathBuf, options: &Options) -> Self {
        let checkpoint = Checkpoint::at(&folder);
        let has_adapters = options.method.has_adapters();
        Self {
            checkpoint: match has_adapters {
                true => checkpoint.trained_only(),
                false => checkpoint,
            },
            has_adapters,
            folder,
        }
    }

    fn keep_last(self, count: usize) -> Self {
        Self {
            checkpoint: self.checkpoint.keep_last(count),
            ..self
        }
    }

    /// Returns an error if there is a checkpoint.
    pub fn check_empty(&self) -> Result<()> {
        ensure!(
            self.steps()?.is_empty(),
            "{} has a checkpoint, but the training has none to resume from: move or remove the folder, or name another with \
             `--output`",
            self.folder.display()
        );
        Ok(())
    }

    /// Returns an error if nothing can be saved.
    pub fn check(&self) -> Result<()> {
        self.checkpoint.check().map_err(|error| self.advise(error))
    }

    /// Returns the newest complete checkpoint, without model and optimizer. `None` if there is none.
    pub fn newest(&self) -> Result<Option<Saved>> {
        let read = || -> Result<_, CheckpointError> {
            if self.checkpoint.steps()?.is_empty() {
                return Ok(None);
            }
            let progress: Progress<Saved> = self.checkpoint.progress()?;
            Ok(Some(progress.user_data))
        };
        read().map_err(|error| self.advise(error))
    }

    /// Returns these checkpoints; [`load`](Self::load) reads the one of `step` instead of the newest.
    pub fn at_step(&self, step: usize) -> Self {
        Self {
            checkpoint: self.checkpoint.at_step(step as u64),
            has_adapters: self.has_adapters,
            folder: self.folder.clone(),
        }
    }

    /// Removes all but the last `count` checkpoints. Call it after a load: the newest one is intact.
    pub fn remove_older(&self, count: usize) -> Result<()> {
        let steps = self.steps()?;
        self.remove(&steps[..steps.len().saturating_sub(count)])
    }

    /// Removes the checkpoints after `step`.
    pub fn remove_later(&self, step: usize) -> Result<()> {
        let mut steps = self.steps()?;
        steps.retain(|later| *later > step as u64);
        self.remove(&steps)
    }

    fn remove(&self, steps: &[u64]) -> Result<()> {
        for step in steps {
            let folder = self.folder.join(format!("step-{step}"));
            // First the file without which a checkpoint is incomplete: the program may be killed in between.
            let removed = std::fs::remove_file(folder.join("training.json"));
            let removed = removed.and_then(|()| std::fs::remove_dir_all(&folder));
            removed.with_context(|| format!("{} can't be removed", folder.display()))?;
        }
        Ok(())
    }

    fn steps(&self) -> Result<Vec<u64>> {
        let steps = self.checkpoint.steps();
        steps.map_err(|error| self.advise(error))
    }

    /// Loads the newest complete checkpoint into `fused`; returns the number of steps that it has made.
    pub fn load(&self, fused: &mut FusedOptimizer<Decoder>) -> Result<usize> {
        let progress = self.checkpoint.load(fused);
        let progress: Progress<Saved> = progress.map_err(|error| self.advise(error))?;
        Ok(progress.step.try_into()?)
    }

    /// Saves `fused`, unless a weight is not finite: the last checkpoint stays.
    pub fn save(&self, fused: &FusedOptimizer<Decoder>, saved: &Saved, step: usize) -> Result<()> {
        let trained = match self.has_adapters {
            true => adapters::factors(),
            false => PathFilter::all(),
        };
        // Without transposition, which needs two copies of a weight.
        check_finite(&fused.model(), Box::new(IdentityAdapter), trained)
            .with_context(|| format!("step {step} is not saved"))?;
        let progress = Progress::new(step as u64).with_user_data(saved.clone());
        // States in few bits as they are.
        compact_records(|| self.checkpoint.save(fused, &progress))
            .map_err(|error| self.advise(error))
    }

    /// Returns the error with the advice for this program.
    fn advise(&self, error: CheckpointError) -> anyhow::Error {
        let folder = self.folder.display();
        match error {
            CheckpointError::Unreadable { file, reason } => anyhow!(
                "{} can't be read: {reason}. Remove its folder: the same command resumes from the checkpoint before it, or begins again",
                file.display()
            ),
            CheckpointError::UserData { .. } => anyhow!(
                "the checkpoint in {folder} was written by another version of this program. Use that version, or name another folder \
                 with `--output`"
            ),
            CheckpointError::Model { file, reason } => anyhow!(
                "{} does not fit the model: {}. Use the files of `--model` that the training began with, or name another folder with \
                 `--output`",
                file.display(),
                names::in_files(&reason)
            ),
            CheckpointError::Optimizer { file, error } => anyhow!(
                "{} does not fit the training: {}. Name another folder with `--output`",
                file.display(),
                names::in_files(&error)
            ),
            CheckpointError::Write { file, reason } => anyhow!(
                "{} can't be written: {reason}. Earlier checkpoints are unchanged. Free disk space, or lower `--keep-last`",
                file.display()
            ),
            error => anyhow!(names::in_files(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_rows_are_refused_with_advice_on_dates() {
        for (option, has_advice) in [(ROWS, true), ("--seed", false)] {
            let saved = |value: &str| {
                let settings = vec![(option.to_owned(), value.to_owned())];
                Saved::new(Settings(settings), 1)
            };
            let error = saved("1").check(&saved("2"), Path::new("checkpoints"));
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{option}` was 1 and is 2")),
                "{error}"
            );
            assert_eq!(error.contains("SOURCE_DATE_EPOCH"), has_advice, "{error}");
        }
    }
}
