use std::any::type_name;
use std::fs;
use std::path::Path;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::tensor::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CheckpointError;
use super::manifest::{SCHEDULER, USER_DATA};

/// The state of a training other than its model and optimizer, saved and loaded by a [`Checkpoint`](crate::Checkpoint).
#[derive(Clone, Debug, Default)]
pub struct Progress<P = ()> {
    /// The number of completed steps, N. The checkpoint is the folder `step-N`.
    pub step: u64,
    /// The record of the learning rate scheduler. [`LrSchedulerRecord::with_record`] combines several records under
    /// names, and [`LrSchedulerRecord::record`] returns them.
    pub scheduler: LrSchedulerRecord,
    /// Other data that the program needs to resume: its options, the seed of the batches, the best loss so far. Numbers are
    /// restored bit for bit, including infinity and NaN.
    pub user_data: P,
}

impl Progress {
    /// Creates the progress after `step` steps, without scheduler and user data.
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

    /// Sets the user data. (In CBOR `Some(())` and `Some(None)` are `None`.)
    #[must_use]
    pub fn with_user_data<Q>(self, user_data: Q) -> Progress<Q> {
        Progress {
            step: self.step,
            scheduler: self.scheduler,
            user_data,
        }
    }
}

fn read<P: DeserializeOwned>(bytes: &[u8]) -> Result<P, CheckpointError> {
    ciborium::from_reader(bytes).map_err(|error| user_data_error::<P>("read", error))
}

fn user_data_error<P>(done: &'static str, reason: impl ToString) -> CheckpointError {
    CheckpointError::UserData {
        done,
        of: type_name::<P>(),
        reason: reason.to_string(),
    }
}

impl<P: Serialize + DeserializeOwned> Progress<P> {
    /// Returns the bytes of the scheduler and of the user data.
    pub(super) fn to_bytes(&self) -> Result<(Bytes, Vec<u8>), CheckpointError> {
        let mut user_data = Vec::new();
        ciborium::into_writer(&self.user_data, &mut user_data)
            .map_err(|error| user_data_error::<P>("written", error))?;
        // Reads it back, so that an unreadable value is an error now, not when the training is resumed.
        read::<P>(&user_data)?;
        let scheduler = self.scheduler.clone().into_bytes();
        Ok((
            scheduler.expect("Burn writes a record into memory"),
            user_data,
        ))
    }
}

impl<P: DeserializeOwned> Progress<P> {
    /// Reads the progress of `step` from the files in `folder`.
    pub(super) fn read(folder: &Path, step: u64) -> Result<Self, CheckpointError> {
        let bytes =
            |file: &Path| fs::read(file).map_err(|error| CheckpointError::unreadable(file, error));
        let scheduler = &folder.join(SCHEDULER);
        let record = Bytes::from_bytes_vec(bytes(scheduler)?);
        let record = LrSchedulerRecord::from_bytes(record)
            .map_err(|error| CheckpointError::unreadable(scheduler, error))?;
        Ok(Progress {
            step,
            scheduler: record,
            user_data: read(&bytes(&folder.join(USER_DATA))?)?,
        })
    }
}
