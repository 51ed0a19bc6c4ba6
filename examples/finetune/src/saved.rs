//! Contents of a checkpoint in addition to model and optimizer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use backburn::optim::{AdamWConfig, compact_records};
use backburn::{Checkpoint, FusedOptimizer, Plan, Progress};
use serde::{Deserialize, Serialize};

use crate::decoder::Decoder;
use crate::options::Options;
use crate::rows::Rows;
use crate::weights;

/// Identity of a training. It resumes only with the same one.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Saved {
    /// Options and their values.
    settings: Vec<(String, String)>,
    /// Plan for the memory budget, if there is one.
    pub plan: Option<Plan<AdamWConfig>>,
}

impl Saved {
    pub fn new(
        options: &Options,
        rows: &Rows,
        steps: usize,
        plan: Option<Plan<AdamWConfig>>,
    ) -> Result<Self> {
        let mut bytes = 0;
        for file in weights::files(&options.model)? {
            let metadata = std::fs::metadata(&file);
            bytes += metadata.with_context(|| file.display().to_string())?.len();
        }
        let mut settings = vec![
            ("--model, bytes of its files", bytes.to_string()),
            // Before the rows, which the seed selects.
            ("--seed", options.seed.to_string()),
            (
                "--data, --length and --pad, checksum of the rows",
                rows.checksum().to_string(),
            ),
            ("--batch", options.batch.to_string()),
            ("--epochs and --steps", steps.to_string()),
            ("--learning-rate", options.learning_rate().to_string()),
            ("--warm-up", options.warm_up.to_string()),
            ("--weight-decay", options.weight_decay.to_string()),
            ("--clip", options.clip.to_string()),
            ("--method", format!("{:?}", options.method)),
            ("--weights", format!("{:?}", options.weights)),
            ("--states", format!("{:?}", options.states)),
        ];
        if options.method.has_adapters() {
            settings.push((
                "--rank, --alpha and --targets",
                format!("{:?}", options.adapters()),
            ));
        }
        let settings = settings
            .into_iter()
            .map(|(option, value)| (option.to_owned(), value));
        Ok(Self {
            settings: settings.collect(),
            plan,
        })
    }

    /// Returns an error if `other` is another training: it names the option.
    pub fn check(&self, other: &Self, folder: &Path) -> Result<()> {
        for ((option, saved), (_, asked)) in self.settings.iter().zip(&other.settings) {
            ensure!(
                saved == asked,
                "the checkpoint in {} is of another training: `{option}` was {saved} and is {asked}. Name another folder with \
                 `--output`, or remove it",
                folder.display()
            );
        }
        Ok(())
    }
}

/// The checkpoints of a training, in a folder in its output.
pub struct Checkpoints {
    checkpoint: Checkpoint,
    pub folder: PathBuf,
}

impl Checkpoints {
    pub fn of(options: &Options) -> Self {
        let folder = options.output.join("checkpoints");
        let mut checkpoint = Checkpoint::at(&folder).keep_last(options.keep_last);
        if options.method.has_adapters() {
            checkpoint = checkpoint.trained_only();
        }
        Self { checkpoint, folder }
    }

    /// Returns an error if nothing can be saved.
    pub fn check(&self) -> Result<()> {
        Ok(self.checkpoint.check()?)
    }

    /// Returns the newest complete checkpoint, without model and optimizer. `None` if there is none.
    pub fn newest(&self) -> Result<Option<Saved>> {
        if self.checkpoint.steps()?.is_empty() {
            return Ok(None);
        }
        let progress: Progress<Saved> = self.checkpoint.progress()?;
        Ok(Some(progress.user_data))
    }

    /// Loads the newest complete checkpoint into `fused`; returns the number of steps that it has made.
    pub fn load(&self, fused: &mut FusedOptimizer<Decoder>) -> Result<usize> {
        let progress: Progress<Saved> = self.checkpoint.load(fused)?;
        Ok(progress.step.try_into()?)
    }

    pub fn save(&self, fused: &FusedOptimizer<Decoder>, saved: &Saved, step: usize) -> Result<()> {
        let progress = Progress::new(step as u64).with_user_data(saved.clone());
        // States in few bits as they are.
        compact_records(|| self.checkpoint.save(fused, &progress))?;
        Ok(())
    }
}
