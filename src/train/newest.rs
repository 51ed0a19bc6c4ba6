//! The newest complete checkpoint that Burn's learner has written.
//!
//! # Invariants
//!
//! Burn writes the three files of a checkpoint on three threads, and renames each when it is complete. A checkpoint is complete if
//! it has all three. The files of a later, incomplete one are renamed: the next save of this epoch, if it is killed too, would complete
//! them with files of another run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::checkpoint::CheckpointError;

/// The folder of Burn's default checkpointers in the folder of a training.
const FOLDER: &str = "checkpoint";

/// The names of the files of an epoch.
const FILES: [&str; 3] = ["model", "optim", "scheduler"];

/// The ending that the files of an incomplete checkpoint get.
const INCOMPLETE: &str = "bpk.incomplete";

/// Returns the last epoch with a complete checkpoint of Burn's default checkpointers in `training`. Renames the files of later ones.
pub(super) fn newest(training: &Path) -> Result<Option<usize>, CheckpointError> {
    let folder = training.join(FOLDER);
    let unreadable = |error: io::Error| CheckpointError::unreadable(&folder, error);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(unreadable)?,
    };
    let mut files = BTreeMap::<usize, Vec<PathBuf>>::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        if let Some(epoch) = epoch(&entry.file_name()) {
            files.entry(epoch).or_default().push(entry.path());
        }
    }
    let newest = files.iter().rev();
    let newest = newest.filter(|(_, files)| files.len() == FILES.len());
    let newest = newest.map(|(epoch, _)| *epoch).next();
    if let (None, Some((last, _))) = (newest, files.last_key_value())
        && *last > 1
    {
        let last = *last;
        return Err(CheckpointError::Incomplete { folder, last });
    }
    let later = newest.map_or(0, |epoch| epoch + 1);
    for (epoch, files) in files.range(later..) {
        log::warn!(
            "skipped the checkpoint of epoch {epoch} in {}: it had {} of {} files, which now end in `.incomplete`",
            folder.display(),
            files.len(),
            FILES.len()
        );
        for file in files {
            let cannot_rename = |error| {
                let reason =
                    format!("it is incomplete and can't be renamed ({error}), so delete it");
                CheckpointError::cannot_write(file, reason)
            };
            fs::rename(file, file.with_extension(INCOMPLETE)).map_err(cannot_rename)?;
        }
    }
    Ok(newest)
}

/// Returns the epoch in the name of a file such as `model-2.bpk`; `None` if a default checkpointer does not write that name.
fn epoch(name: &OsStr) -> Option<usize> {
    let (file, epoch) = name.to_str()?.strip_suffix(".bpk")?.split_once('-')?;
    let number = epoch.parse::<usize>().ok()?;
    (FILES.contains(&file) && number.to_string() == epoch).then_some(number)
}
