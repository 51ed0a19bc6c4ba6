//! Checkpoints of trainings in a folder. Saving and loading are atomic.

mod error;
mod folder;
mod lock;
mod manifest;
mod progress;

use std::path::PathBuf;

use backburn_base::caught::catch_message;
use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::FusedError;
use crate::fused::{FusedOptimizer, FusedReplicas, ResumeError, Trainer};
pub use error::CheckpointError;
use manifest::{ALL, MODEL, Manifest, OPTIMIZER, SCHEDULER, USER_DATA};
pub use progress::Progress;

/// A training that a [`Checkpoint`] saves and loads: a [`FusedOptimizer`] or [`FusedReplicas`].
pub trait Resumable: Trainer {}

impl<M: Module> Resumable for FusedOptimizer<M> {}

impl<M: Module + 'static> Resumable for FusedReplicas<M> {}

/// The checkpoints of one training in a folder. A checkpoint contains the model, the optimizer, the learning rate
/// scheduler, the step, and user data: all other data that the program needs to resume.
///
/// ```
/// use backburn::{Checkpoint, FusedOptimizer, Progress};
/// use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// # let run = tempfile::tempdir()?;
/// # let run = run.path();
/// # for _ in 0..2 {
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(8, 1).init(&device);
/// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())?;
/// let mut scheduler = CosineAnnealingLrSchedulerConfig::new(1e-3, 100).init()?;
///
/// let checkpoint = Checkpoint::at(run).keep_last(2); // `Checkpoint::at("run")`, say
/// let mut done = 0;
/// if !checkpoint.steps()?.is_empty() {
///     let progress: Progress = checkpoint.load(&mut fused)?;
///     scheduler = scheduler.load_record(progress.scheduler);
///     done = progress.step;
/// }
/// for step in done..100 {
///     let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
///     fused.step(scheduler.step(), |model| model.forward(x).powi_scalar(2).mean())?;
///     if (step + 1) % 50 == 0 {
///         let progress = Progress::new(step + 1).with_scheduler(scheduler.to_record());
///         checkpoint.save(&fused, &progress)?;
///     }
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A resumed training equals an uninterrupted one, bit for bit where steps are deterministic, if it gets the same batches and random
/// numbers. Burn's generators can be seeded but not read, so seed them by the step ([`Device::seed`](burn::tensor::Device::seed)).
/// On CubeCL devices this is not enough for checkpointed blocks, steps of two passes and several ranks: their seeds come from the
/// first step of the process.
/// Optimizer states of f64 parameters are converted to the default float type, as in
/// [`FusedOptimizer::load_record`](crate::FusedOptimizer::load_record). Burn's own optimizers can't continue with those of f64, f16 and
/// bf16 parameters: use those of `backburn::optim`.
///
/// # Layout
///
/// | `step-500/` | |
/// |---|---|
/// | `model.bpk`, `optimizer.bpk`, `scheduler.bpk` | Burn's records, which stock Burn loads |
/// | `user-data.cbor` | the user data |
/// | `training.json` | the step, and length and CRC-32 of the other files |
///
/// A save writes a temporary folder, flushes it to disk, and renames it. If the process is killed at any time, the last
/// complete checkpoint is intact. A folder without `training.json` is incomplete and skipped. Step folders are replaced
/// and removed with all their contents. Other files are not touched. One process saves at a time: saves and loads wait
/// for each other (`checkpoint.lock`).
///
/// Call `save` inside of [`compact_records`](crate::optim::compact_records) to write quantized optimizer states in their own format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    folder: PathBuf,
    step: Option<u64>,
    keep_last: Option<usize>,
    trained_only: bool,
}

impl Checkpoint {
    /// Returns a handle to the checkpoints in `folder`, which need not exist yet. A relative path becomes absolute now, so later
    /// changes of the working directory have no effect.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Self {
            folder: std::path::absolute(&folder).unwrap_or(folder),
            step: None,
            keep_last: None,
            trained_only: false,
        }
    }

    /// Keeps the `count` checkpoints with the highest steps, and removes the others after each save. By default all are
    /// kept.
    ///
    /// The last saved checkpoint and those of later steps are never removed.
    #[must_use]
    pub fn keep_last(self, count: usize) -> Self {
        Self {
            keep_last: Some(count),
            ..self
        }
    }

    /// Saves only the parameters that require a gradient, such as adapters, with their optimizer states, running statistics, and
    /// parameters of integers and truth values, such as counters.
    ///
    /// Load such a checkpoint into a model whose frozen parameters were loaded from their own file: they keep their values.
    #[must_use]
    pub fn trained_only(self) -> Self {
        Self {
            trained_only: true,
            ..self
        }
    }

    /// Reads the checkpoint of `step` instead of the newest one. Saves are not affected.
    #[must_use]
    pub fn at_step(&self, step: u64) -> Self {
        Self {
            step: Some(step),
            ..self.clone()
        }
    }

    /// Returns the steps of the complete checkpoints in the folder, in ascending order.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Unreadable`] if the folder can't be read, and [`CheckpointError::Invalid`].
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        self.validate()?;
        let _lock = lock::shared(&self.folder);
        Ok(folder::complete(&self.folder)?.into_keys().collect())
    }

    /// Creates the folder if needed, and returns an error if files can't be written to it. Call this before a long training.
    /// Also completes or removes saves that were interrupted.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`] if the folder can't be created or written to, [`CheckpointError::Unreadable`] if it can't be
    /// read, and [`CheckpointError::Invalid`] for an empty path and for `keep_last(0)`.
    pub fn check(&self) -> Result<(), CheckpointError> {
        self.validate()?;
        folder::create(&self.folder)?;
        let _lock = lock::exclusive(&self.folder)?;
        folder::check_writable(&self.folder)
    }

    fn validate(&self) -> Result<(), CheckpointError> {
        let reason = if self.folder.as_os_str().is_empty() {
            "the path of the checkpoint is empty: pass a folder"
        } else if self.keep_last == Some(0) {
            "`keep_last(0)` keeps no checkpoint: keep 1 or more"
        } else {
            return Ok(());
        };
        Err(CheckpointError::Invalid { reason })
    }

    /// Saves `training` and `progress` between two steps, in the folder `step-N` with N = `progress.step`.
    ///
    /// A checkpoint of the same step is replaced: it is removed when the new one is complete.
    /// After the save, earlier checkpoints are removed according to [`keep_last`](Self::keep_last).
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Accumulated`] if there are accumulated gradients, [`CheckpointError::UserData`] if the user data can't be
    /// read back, [`CheckpointError::Devices`] if the training can't be read, [`CheckpointError::Write`], and
    /// [`CheckpointError::Invalid`]. On an error, earlier checkpoints are unchanged.
    pub fn save<P>(
        &self,
        training: &impl Resumable,
        progress: &Progress<P>,
    ) -> Result<(), CheckpointError>
    where
        P: Serialize + DeserializeOwned,
    {
        self.validate()?;
        if training.core().has_accumulated() {
            return Err(CheckpointError::Accumulated);
        }
        let lost = |error: FusedError| CheckpointError::Devices {
            reason: error.to_string(),
        };
        training.core().check_connected().map_err(lost)?;
        let step = progress.step;
        let progress = progress.to_bytes()?;
        folder::create(&self.folder)?;
        let _lock = lock::exclusive(&self.folder)?;
        folder::clean(&self.folder)?;
        let saved = self
            .write(training, progress, step)
            .and_then(|()| folder::publish(&self.folder, step));
        if saved.is_err() {
            warn(folder::clean(&self.folder));
        } else {
            warn(self.remove_older(step));
        }
        saved
    }

    /// Writes all files to a temporary folder.
    fn write(
        &self,
        training: &impl Resumable,
        (scheduler, user_data): (Bytes, Vec<u8>),
        step: u64,
    ) -> Result<(), CheckpointError> {
        let temporary = &folder::begin(&self.folder, step)?;
        // Records are written tensor by tensor, so that no more than one is in host memory twice.
        let model = temporary.join(MODEL);
        read(|| training.core().save_model(&model, self.trained_only))?
            .map_err(|error| CheckpointError::cannot_write(&model, error))?;
        let optimizer = temporary.join(OPTIMIZER);
        read(|| {
            training
                .core()
                .save_optimizer(&optimizer, self.trained_only)
        })?
        .map_err(|error| CheckpointError::cannot_write(&optimizer, error))?;
        // Burn's reader has limits that its writer does not have.
        let compact =
            ". In `compact_records(|| checkpoint.save(..))` optimizer states take fewer bytes";
        for (file, advice) in [(&model, ""), (&optimizer, compact)] {
            burn_pack::Reader::from_file(file).map_err(|error| {
                let reason = format!("Burn could not read it again: {error}{advice}");
                CheckpointError::cannot_write(file, reason)
            })?;
        }
        folder::write(&temporary.join(SCHEDULER), &scheduler)?;
        folder::write(&temporary.join(USER_DATA), &user_data)?;
        let orthogonalized = training.core().orthogonalized(&optimizer)?;
        Manifest::write(temporary, step, self.trained_only, orthogonalized)?;
        folder::flush_folder(temporary)
    }

    /// Removes the checkpoints beyond `keep_last` after a save of `step`.
    fn remove_older(&self, step: u64) -> Result<(), CheckpointError> {
        let steps = folder::complete(&self.folder)?;
        if let Some(last) = steps.keys().next_back().filter(|last| **last > step) {
            log::warn!(
                "step {step} is saved in {}, but `load` reads step {last}: remove the later steps, or load with `at_step({step})`",
                self.folder.display(),
            );
        }
        let Some(count) = self.keep_last else {
            return Ok(());
        };
        let older = steps.into_keys().rev().skip(count);
        older
            .filter(|older| *older < step)
            .try_for_each(|older| folder::remove(&self.folder, older))
    }

    /// Loads model and optimizer state of the newest complete checkpoint into `training`, and returns the progress.
    ///
    /// The training must have the config and optimizer of the saved one, and a model of the same structure and types;
    /// devices, the number of devices, and the offload may differ (a quantized base loads on the same kind of device). Accumulated
    /// gradients are dropped. After the load, the parameters have the ids of the checkpoint: define parameter groups, also those of
    /// learning rates, by path.
    ///
    /// # Errors
    ///
    /// If there is no checkpoint, or the newest one is damaged, of a later version, or of another model, optimizer or type of user data.
    /// [`CheckpointError::Fused`] with [`FusedError::Config`] if a group of the optimizer or of a hook has ids of the model before the
    /// load. [`CheckpointError::Invalid`] for an empty path.
    /// The training is unchanged on an error. [`at_step`](Self::at_step) loads an earlier one.
    pub fn load<P>(&self, training: &mut impl Resumable) -> Result<Progress<P>, CheckpointError>
    where
        P: DeserializeOwned,
    {
        let _lock = lock::shared(&self.folder);
        let (folder, saved) = self.open(&ALL)?;
        let progress = Progress::read(&folder, saved.step)?;
        let (model, optimizer) = (folder.join(MODEL), folder.join(OPTIMIZER));
        burn_pack::Reader::from_file(&optimizer)
            .map_err(|error| CheckpointError::unreadable(&optimizer, error))?;
        let core = training.core_mut();
        let resumed = core.resume(
            &model,
            saved.trained_only,
            &optimizer,
            saved.orthogonalized.as_ref(),
        );
        resumed.map_err(|error| match error {
            ResumeError::Model(error) => CheckpointError::of_model(&model, error),
            ResumeError::Optimizer(error) => CheckpointError::Optimizer {
                file: optimizer,
                error,
            },
            ResumeError::Fused(error) => CheckpointError::Fused(error),
        })?;
        Ok(progress)
    }

    /// Returns only the progress, to create model and optimizer according to the user data before loading them.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`load`](Self::load).
    pub fn progress<P: DeserializeOwned>(&self) -> Result<Progress<P>, CheckpointError> {
        let _lock = lock::shared(&self.folder);
        let (folder, saved) = self.open(&[SCHEDULER, USER_DATA])?;
        Progress::read(&folder, saved.step)
    }

    /// Returns only the record of the model, in host memory, for validation or inference.
    ///
    /// On a CPU backend, a model that loads it shares its memory as long as one of its parameters exists. To train the model without
    /// this copy, load `model.bpk` with [`ModuleRecord::load`].
    ///
    /// The record of a [`trained_only`](Self::trained_only) checkpoint accepts missing parameters ([`ModuleRecord::allow_partial`]).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`load`](Self::load).
    pub fn model(&self) -> Result<ModuleRecord, CheckpointError> {
        let _lock = lock::shared(&self.folder);
        let (folder, saved) = self.open(&[MODEL])?;
        let file = folder.join(MODEL);
        // Burn reads the file lazily, and `keep_last` may remove it before.
        let bytes = std::fs::read(&file).map_err(|error| CheckpointError::unreadable(&file, error));
        let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(bytes?))
            .map_err(|error| CheckpointError::unreadable(&file, error))?;
        Ok(record.allow_partial(saved.trained_only))
    }

    /// Returns the folder of the checkpoint to read, and its manifest, after a check of `files`.
    fn open(&self, files: &[&str]) -> Result<(PathBuf, Manifest), CheckpointError> {
        self.validate()?;
        let steps = folder::complete(&self.folder)?;
        let step = self.step.or_else(|| steps.keys().next_back().copied());
        match step.and_then(|step| Some((step, steps.get(&step)?))) {
            Some((step, path)) => Ok((path.clone(), Manifest::read(path, step, files)?)),
            None => Err(CheckpointError::NotFound {
                folder: self.folder.clone(),
                step: self.step,
            }),
        }
    }
}

/// Logs that old files were not removed. The next save tries again.
fn warn(removed: Result<(), CheckpointError>) {
    if let Err(error) = removed {
        log::warn!("the remains of an old checkpoint were not removed: {error}");
    }
}

/// Runs `work`, which reads from the devices of the training, and converts a panic to an error.
fn read<R>(work: impl FnOnce() -> R) -> Result<R, CheckpointError> {
    catch_message(work).map_err(|reason| CheckpointError::Devices { reason })
}
