use std::any::type_name;
use std::path::Path;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::tensor::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::disk;
use super::error::CheckpointError;

/// How far a training is, beside its model and its optimizer: saved and loaded by a [`Checkpoint`](crate::Checkpoint).
#[derive(Clone, Debug, Default)]
pub struct Progress<P = ()> {
    /// The number of steps that were made.
    pub step: u64,
    /// Of the learning rate scheduler. Those of several go into one under names of yours:
    /// [`LrSchedulerRecord::with_record`] puts them in, and [`LrSchedulerRecord::record`] gives them back.
    pub scheduler: LrSchedulerRecord,
    /// Whatever else the program needs to go on: its options, the seed of the batches, the best loss so far. Numbers come back
    /// to the bit, infinite ones and NaN, too.
    pub plan: P,
}

impl Progress {
    /// So many steps.
    pub fn new(step: u64) -> Self {
        Self {
            step,
            ..Self::default()
        }
    }
}

impl<P> Progress<P> {
    /// With that of the learning rate scheduler.
    #[must_use]
    pub fn with_scheduler(self, scheduler: LrSchedulerRecord) -> Self {
        Self { scheduler, ..self }
    }

    /// With whatever else the program needs to go on.
    #[must_use]
    pub fn with_plan<Q>(self, plan: Q) -> Progress<Q> {
        Progress {
            step: self.step,
            scheduler: self.scheduler,
            plan,
        }
    }
}

/// As it is in its file. The scheduler has one of its own.
#[derive(Serialize, Deserialize)]
struct Told<P> {
    step: u64,
    plan: P,
}

fn read<P: DeserializeOwned>(bytes: &[u8]) -> Result<Told<P>, CheckpointError> {
    ciborium::from_reader(bytes).map_err(|error| unfit::<P>("read", error))
}

fn unfit<P>(done: &'static str, reason: impl ToString) -> CheckpointError {
    CheckpointError::Plan {
        done,
        of: type_name::<P>(),
        reason: reason.to_string(),
    }
}

impl<P: Serialize + DeserializeOwned> Progress<P> {
    /// The bytes of the scheduler, and those of all else.
    pub(super) fn written(&self) -> Result<(Bytes, Vec<u8>), CheckpointError> {
        let Self {
            step,
            scheduler,
            plan,
        } = self;
        let mut bytes = Vec::new();
        let told = Told { step: *step, plan };
        ciborium::into_writer(&told, &mut bytes).map_err(|error| unfit::<P>("written", error))?;
        // Not when the training is to go on, and it is too late.
        read::<P>(&bytes)?;
        let scheduler = scheduler.clone().into_bytes();
        let scheduler = scheduler.expect("Burn writes a record into memory");
        Ok((scheduler, bytes))
    }
}

impl<P: DeserializeOwned> Progress<P> {
    pub(super) fn read(scheduler: &Path, progress: &Path) -> Result<Self, CheckpointError> {
        let Told { step, plan } = read(&disk::read(progress)?)?;
        let record = Bytes::from_bytes_vec(disk::read(scheduler)?);
        let record = LrSchedulerRecord::from_bytes(record)
            .map_err(|error| CheckpointError::cannot_read(scheduler, error))?;
        Ok(Progress {
            step,
            scheduler: record,
            plan,
        })
    }
}
