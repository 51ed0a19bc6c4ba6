use std::any::type_name;
use std::fs;
use std::path::Path;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::tensor::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CheckpointError;

/// The state of a training other than its model and optimizer, saved and loaded by a [`Checkpoint`](crate::Checkpoint).
#[derive(Clone, Debug, Default)]
pub struct Progress<P = ()> {
    /// The number of completed steps, which names the folder.
    pub step: u64,
    /// The record of the learning rate scheduler. [`LrSchedulerRecord::with_record`] combines several records under
    /// names, and [`LrSchedulerRecord::record`] returns them.
    pub scheduler: LrSchedulerRecord,
    /// Other data that the program needs to resume: its options, the seed of the batches, the best loss so far. Numbers are
    /// restored bit for bit, including infinity and NaN.
    pub plan: P,
}

impl Progress {
    /// Creates the progress after `step` steps, without scheduler and plan.
    pub fn new(step: u64) -> Self {
        Self {
            step,
            ..Self::default()
        }
    }
}

impl<P> Progress<P> {
    /// Sets the record of the learning rate scheduler.
    #[must_use]
    pub fn with_scheduler(self, scheduler: LrSchedulerRecord) -> Self {
        Self { scheduler, ..self }
    }

    /// Sets the plan.
    #[must_use]
    pub fn with_plan<Q>(self, plan: Q) -> Progress<Q> {
        Progress {
            step: self.step,
            scheduler: self.scheduler,
            plan,
        }
    }
}

fn read<P: DeserializeOwned>(bytes: &[u8]) -> Result<P, CheckpointError> {
    ciborium::from_reader(bytes).map_err(|error| plan_error::<P>("read", error))
}

fn plan_error<P>(done: &'static str, reason: impl ToString) -> CheckpointError {
    CheckpointError::Plan {
        done,
        of: type_name::<P>(),
        reason: reason.to_string(),
    }
}

impl<P: Serialize + DeserializeOwned> Progress<P> {
    /// Returns the bytes of the scheduler and of the plan.
    pub(super) fn to_bytes(&self) -> Result<(Bytes, Vec<u8>), CheckpointError> {
        let mut plan = Vec::new();
        ciborium::into_writer(&self.plan, &mut plan)
            .map_err(|error| plan_error::<P>("written", error))?;
        // Read it back, so that an unreadable plan is an error now and not when the training is resumed.
        read::<P>(&plan)?;
        let scheduler = self.scheduler.clone().into_bytes();
        Ok((scheduler.expect("Burn writes a record into memory"), plan))
    }
}

impl<P: DeserializeOwned> Progress<P> {
    pub(super) fn read(step: u64, scheduler: &Path, plan: &Path) -> Result<Self, CheckpointError> {
        let bytes = |file| fs::read(file).map_err(|error| CheckpointError::unreadable(file, error));
        let record = Bytes::from_bytes_vec(bytes(scheduler)?);
        let record = LrSchedulerRecord::from_bytes(record)
            .map_err(|error| CheckpointError::unreadable(scheduler, error))?;
        Ok(Progress {
            step,
            scheduler: record,
            plan: read(&bytes(plan)?)?,
        })
    }
}
