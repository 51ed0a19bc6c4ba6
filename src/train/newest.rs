//! The newest complete checkpoint that Burn's learner has written.
//!
//! # Invariants
//!
//! Burn writes the three files of a checkpoint on three threads, and renames each when it is complete. A checkpoint is complete if
//! it has all three.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::checkpoint::CheckpointError;

/// The folder of Burn's default checkpointers in the folder of a training.
const FOLDER: &str = "checkpoint";

/// The names of the files of an epoch.
const FILES: [&str; 3] = ["model", "optim", "scheduler"];

/// Returns the last epoch with a complete checkpoint of Burn's default checkpointers in `training`.
pub(super) fn newest(training: &Path) -> Result<Option<usize>, CheckpointError> {
    let folder = training.join(FOLDER);
    let unreadable = |error: io::Error| CheckpointError::Unreadable {
        file: folder.clone(),
        reason: error.to_string(),
    };
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(unreadable)?,
    };
    let mut files = BTreeMap::<usize, usize>::new();
    for entry in entries {
        if let Some(epoch) = epoch(&entry.map_err(unreadable)?.file_name()) {
            *files.entry(epoch).or_default() += 1;
        }
    }
    let newest = files.into_iter().rev().find(|(epoch, count)| {
        let is_complete = *count == FILES.len();
        if !is_complete {
            log::warn!(
                "skipped the checkpoint of epoch {epoch} in {}: it has {count} of {} files",
                folder.display(),
                FILES.len()
            );
        }
        is_complete
    });
    Ok(newest.map(|(epoch, _)| epoch))
}

/// Returns the epoch in the name of a file such as `model-2.bpk`; `None` if a default checkpointer does not write that name.
fn epoch(name: &OsStr) -> Option<usize> {
    let (file, epoch) = name.to_str()?.strip_suffix(".bpk")?.split_once('-')?;
    let number = epoch.parse::<usize>().ok()?;
    (FILES.contains(&file) && number.to_string() == epoch).then_some(number)
}
