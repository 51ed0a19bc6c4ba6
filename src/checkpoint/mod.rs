//! A training in a folder: saved whole or not at all, and loaded whole or not at all.
//!
//! The files of a checkpoint, its *parts*, are in one of two *slots*, folders within that of the checkpoint. The *manifest*
//! beside them names the slot, and seals each part with its length and its checksum. A save writes the parts to the other
//! slot and flushes them to disk; then it moves a new manifest in the place of the old one, which is the one moment at which
//! the checkpoint is another; then it clears the old slot. Whatever else is in the folder is not looked at.

mod disk;
mod error;
mod lock;
mod manifest;
mod part;
mod progress;
mod seal;
mod slot;

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::device::caught;
use crate::fused::{Door, FusedOptimizer, FusedReplicas, Unfit};
pub use error::CheckpointError;
use lock::Lock;
use manifest::Manifest;
pub use progress::Progress;
use slot::Slot;

/// A training that a [`Checkpoint`] saves and goes on with: a [`FusedOptimizer`] or [`FusedReplicas`].
pub trait Resumable: Door {}

impl<M: Module> Resumable for FusedOptimizer<M> {}

impl<M: Module + 'static> Resumable for FusedReplicas<M> {}

/// A training saved in a folder: model, optimizer, learning rate scheduler, the number of steps, and whatever else the
/// program needs to go on.
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
/// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init());
/// let mut scheduler = CosineAnnealingLrSchedulerConfig::new(1e-3, 100).init()?;
///
/// let checkpoint = Checkpoint::at(run); // `Checkpoint::at("run")`, say
/// let mut done = 0;
/// if checkpoint.exists() {
///     let progress: Progress = checkpoint.load(&mut fused)?;
///     scheduler = scheduler.load_record(progress.scheduler);
///     done = progress.step;
/// }
/// for step in done..100 {
///     let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
///     fused.step(scheduler.step(), |model| model.forward(x).powi_scalar(2).mean());
///     if (step + 1) % 50 == 0 {
///         let progress = Progress::new(step + 1).with_scheduler(scheduler.to_record());
///         checkpoint.save(&fused, &progress)?;
///     }
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A resumed training is the one that was not interrupted, to the bit where steps are, as long as it sees the same batches and
/// random numbers: Burn's generators can be seeded, not read, so seed them by the step
/// ([`Device::seed`](burn::tensor::Device::seed)) where that matters. Optimizer states of f64 parameters come back in the
/// default float type, as in [`FusedOptimizer::try_load_record`](crate::FusedOptimizer::try_load_record).
///
/// - **A save that is killed leaves the last complete checkpoint.** The new one is written beside it and flushed to disk (files
///   and folders; on Windows, which flushes no folders, the files) before one small file is replaced, and the old one goes
///   after that. What a killed save leaves is removed by the next. The folder takes two checkpoints for that while.
/// - **Parts of two checkpoints are refused**, as are damaged ones: each has a length and a CRC-32, and is read to the end before
///   anything is loaded. A load that fails changes nothing in the training.
/// - **Whatever else is in the folder stays there**, and is no reason not to save.
/// - Saves and loads wait for each other (`checkpoint.lock`, held by the operating system and gone with the process), so a
///   program that evaluates may load while another saves.
///
/// The parts are records of Burn's: `model.bpk`, `optimizer.bpk` and `scheduler.bpk` in `parts-a` or `parts-b`, whichever
/// `checkpoint.json` names. [`compact_records`](crate::optim::compact_records) around `save` writes optimizer states in few
/// bits as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    folder: PathBuf,
}

impl Checkpoint {
    /// The checkpoint in `folder`, whether there is one or not yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether one is there.
    pub fn exists(&self) -> bool {
        Manifest::path(&self.folder).exists()
    }

    /// Makes sure that a checkpoint can be saved, and makes the folder for it: better before a training than after.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`] if the folder is not there and can't be made, or nothing can be written to it.
    pub fn check(&self) -> Result<(), CheckpointError> {
        disk::create_folder(&self.folder)?;
        let _lock = Lock::exclusive(&self.folder)?;
        Manifest::try_write(&self.folder)
    }

    /// Saves `training` as it is between two steps, and `progress` with it, in the place of the checkpoint that was there.
    ///
    /// It stays what it is until all of the new one is on disk. Nothing but its own files is replaced.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::AmidGroup`] if there are accumulated gradients, [`CheckpointError::Plan`] if the plan can't be
    /// written so that it comes back, [`CheckpointError::Devices`] if the training can't be read, and
    /// [`CheckpointError::Write`]. The checkpoint that was there is there then.
    pub fn save<P>(
        &self,
        training: &impl Resumable,
        progress: &Progress<P>,
    ) -> Result<(), CheckpointError>
    where
        P: Serialize + DeserializeOwned,
    {
        if training.core().has_accumulated() {
            return Err(CheckpointError::AmidGroup);
        }
        let progress = progress.written()?;
        disk::create_folder(&self.folder)?;
        let _lock = Lock::exclusive(&self.folder)?;
        Manifest::remove_unfinished(&self.folder)?;
        let before = Manifest::slot(&self.folder)?;
        let slot = Slot::beside(before, &self.folder);
        let written = self.write(training, progress, slot);
        // A manifest may be in its place although flushing it has failed.
        match Manifest::slot(&self.folder) {
            Ok(Some(now)) => now.other().clear_or_warn(&self.folder),
            Ok(None) => slot.clear_or_warn(&self.folder),
            Err(_) => {}
        }
        written
    }

    /// Writes all to `slot`, and then names that.
    fn write(
        &self,
        training: &impl Resumable,
        (scheduler, progress): (Bytes, Vec<u8>),
        slot: Slot,
    ) -> Result<(), CheckpointError> {
        slot.clear(&self.folder)?;
        disk::create_folder(&slot.folder(&self.folder))?;
        let path = |part| slot.path(part, &self.folder);
        // One after the other: what is read from a device for one is gone before the next.
        let model = path(part::MODEL);
        read(|| training.core().model_record().save(&model))?
            .map_err(|error| CheckpointError::cannot_write(&model, error))?;
        let optimizer = path(part::OPTIMIZER);
        read(|| training.core().optimizer_record().save(&optimizer))?
            .map_err(|error| CheckpointError::cannot_write(&optimizer, error))?;
        disk::write(&path(part::SCHEDULER), &scheduler)?;
        disk::write(&path(part::PROGRESS), &progress)?;
        disk::flush_folder(&slot.folder(&self.folder))?;
        disk::flush_folder(&self.folder)?;
        Manifest::of(slot, &self.folder)?.write(&self.folder)
    }

    /// Goes on with what was saved: puts model and optimizer state into `training`, and returns the rest.
    ///
    /// The training has the same config and optimizer as that which was saved, and a model of the same structure and types;
    /// its device, the number of devices, and what waits in host memory may be others. Accumulated gradients are
    /// dropped.
    ///
    /// # Errors
    ///
    /// If there is no checkpoint, or one of a later version; if a part is missing, damaged, or of another checkpoint; if it is
    /// one of another model, optimizer, or plan. Nothing has changed then.
    pub fn load<P>(&self, training: &mut impl Resumable) -> Result<Progress<P>, CheckpointError>
    where
        P: DeserializeOwned,
    {
        let _lock = Lock::shared(&self.folder);
        let manifest = Manifest::read(&self.folder)?;
        let [model, optimizer, scheduler, progress] =
            part::ALL.map(|part| manifest.checked(part, &self.folder));
        let (model, optimizer) = (model?, optimizer?);
        let progress = Progress::read(&scheduler?, &progress?)?;
        let record = ModuleRecord::load(&model)
            .map_err(|error| CheckpointError::cannot_read(&model, error))?;
        let state = OptimizerRecord::load(&optimizer)
            .map_err(|error| CheckpointError::cannot_read(&optimizer, error))?;
        let resumed = training.core_mut().resume(record, state);
        resumed.map_err(|unfit| match unfit {
            Unfit::Model(error) => CheckpointError::of_another_model(&model, error),
            Unfit::Optimizer(error) => CheckpointError::Optimizer {
                file: optimizer,
                error,
            },
            Unfit::Fused(error) => CheckpointError::Fused(error),
        })?;
        Ok(progress)
    }

    /// How far the training was, without its model and its optimizer: to see what it was of before they are made.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn progress<P: DeserializeOwned>(&self) -> Result<Progress<P>, CheckpointError> {
        let _lock = Lock::shared(&self.folder);
        let manifest = Manifest::read(&self.folder)?;
        let [scheduler, progress] =
            [part::SCHEDULER, part::PROGRESS].map(|part| manifest.checked(part, &self.folder));
        Progress::read(&scheduler?, &progress?)
    }

    /// The model alone, in host memory: to validate it, or to use it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn model(&self) -> Result<ModuleRecord, CheckpointError> {
        let _lock = Lock::shared(&self.folder);
        let manifest = Manifest::read(&self.folder)?;
        let file = manifest.checked(part::MODEL, &self.folder)?;
        // Not by its name, under which there is nothing any more after the next save.
        let bytes = disk::read(&file)?;
        ModuleRecord::from_bytes(Bytes::from_bytes_vec(bytes))
            .map_err(|error| CheckpointError::cannot_read(&file, error))
    }
}

/// What `work` returns, which reads the training from its devices.
fn read<R>(work: impl FnOnce() -> R) -> Result<R, CheckpointError> {
    caught(work).map_err(|reason| CheckpointError::Devices { reason })
}
