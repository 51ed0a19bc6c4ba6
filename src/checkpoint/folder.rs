//! The step folders of a checkpoint. A kill or a power failure at any time leaves the last complete one intact.
//!
//! # Invariants
//!
//! - A save writes `.step-N.tmp`, flushes it, removes an existing `step-N`, and renames the temporary folder to it.
//! - A folder without `training.json` is incomplete: that file is created last, by a rename, and removed first.
//! - A complete `.step-N.tmp` is the checkpoint of step N if `step-N` is not complete. The next save renames it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;

pub(super) const TRAINING: &str = "training.json";

/// A folder created by a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Step(u64),
    Temporary(u64),
}

impl Entry {
    /// Parses the name of a folder; `None` if it was not created by a save.
    fn parse(name: &str) -> Option<Self> {
        let number = |text: &str| {
            let step = text.parse::<u64>().ok()?;
            (step.to_string() == text).then_some(step)
        };
        match name.strip_prefix("step-") {
            Some(text) => number(text).map(Self::Step),
            None => {
                let text = name.strip_prefix(".step-")?.strip_suffix(".tmp")?;
                number(text).map(Self::Temporary)
            }
        }
    }
}

fn step_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step}"))
}

fn temporary(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!(".step-{step}.tmp"))
}

/// Returns the complete checkpoints in `folder` by step, and skips the others.
pub(super) fn complete(folder: &Path) -> Result<BTreeMap<u64, PathBuf>, CheckpointError> {
    let mut found = BTreeMap::new();
    for (entry, path) in entries(folder)? {
        match (entry, is_complete(&path)?) {
            (Entry::Step(step), true) => {
                found.insert(step, path);
            }
            (Entry::Temporary(step), true) => {
                found.entry(step).or_insert(path);
            }
            (Entry::Step(_), false) => {
                log::warn!("skipped {}: it has no `{TRAINING}`", path.display());
            }
            (Entry::Temporary(_), false) => {}
        }
    }
    Ok(found)
}

/// Creates the temporary folder of `step`.
pub(super) fn begin(folder: &Path, step: u64) -> Result<PathBuf, CheckpointError> {
    let (target, temporary) = (step_folder(folder, step), temporary(folder, step));
    if target.exists() && !target.is_dir() {
        return Err(CheckpointError::cannot_write(&target, "it is not a folder"));
    }
    create(&temporary)?;
    Ok(temporary)
}

/// Renames the temporary folder of `step`, and replaces an existing checkpoint.
pub(super) fn publish(folder: &Path, step: u64) -> Result<(), CheckpointError> {
    let target = step_folder(folder, step);
    if fs::symlink_metadata(&target).is_ok() {
        discard(&target)?;
    }
    rename(&temporary(folder, step), &target)?;
    flush_folder(folder)
}

/// Removes the checkpoint of `step`.
pub(super) fn remove(folder: &Path, step: u64) -> Result<(), CheckpointError> {
    let temporary = temporary(folder, step);
    rename(&step_folder(folder, step), &temporary)?;
    discard(&temporary)
}

/// Completes saves that were interrupted after they were written, and removes the remains of the others.
pub(super) fn clean(folder: &Path) -> Result<(), CheckpointError> {
    for (entry, path) in entries(folder)? {
        if let Entry::Temporary(step) = entry {
            match is_complete(&path)? && !is_complete(&step_folder(folder, step))? {
                true => publish(folder, step)?,
                false => discard(&path)?,
            }
        }
    }
    Ok(())
}

/// Removes a folder, or a link to one without its target.
fn discard(path: &Path) -> Result<(), CheckpointError> {
    let removed = match path.is_symlink() {
        true => Ok(()),
        false => fs::remove_file(path.join(TRAINING)),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir_all(path),
    }
    .map_err(cannot_write(path))
}

/// Returns the folders in `folder` that were created by saves.
fn entries(folder: &Path) -> Result<Vec<(Entry, PathBuf)>, CheckpointError> {
    let unreadable = |error: io::Error| CheckpointError::unreadable(folder, error);
    let found = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.map_err(unreadable)?,
    };
    let mut entries = Vec::new();
    for entry in found {
        let entry = entry.map_err(unreadable)?;
        let Some(parsed) = entry.file_name().to_str().and_then(Entry::parse) else {
            continue;
        };
        // A folder that can't be read must not be skipped: an earlier one would be loaded.
        match fs::metadata(entry.path()) {
            Ok(found) if found.is_dir() => entries.push((parsed, entry.path())),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(CheckpointError::unreadable(&entry.path(), error)),
        }
    }
    Ok(entries)
}

fn is_complete(folder: &Path) -> Result<bool, CheckpointError> {
    let file = folder.join(TRAINING);
    let exists = file.try_exists();
    exists.map_err(|error| CheckpointError::unreadable(&file, error))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(cannot_write(to))
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    move |error| CheckpointError::cannot_write(path, error)
}

/// Creates `folder` and its parents.
pub(super) fn create(folder: &Path) -> Result<(), CheckpointError> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(cannot_write(folder))?;
    folder.parent().map_or(Ok(()), flush_folder)
}

/// Returns an error if nothing can be written to `folder`.
pub(super) fn check_writable(folder: &Path) -> Result<(), CheckpointError> {
    clean(folder)?;
    // A temporary folder: if the process is killed here, the next save removes it.
    discard(&begin(folder, u64::MAX)?)
}

/// Writes a file and flushes it to disk.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(cannot_write(path))
}

/// Flushes the entries of `folder` to disk.
pub(super) fn flush_folder(folder: &Path) -> Result<(), CheckpointError> {
    // Windows can't open a folder.
    if cfg!(unix) {
        let flushed = File::open(folder).and_then(|opened| opened.sync_all());
        flushed.map_err(cannot_write(folder))?;
    }
    Ok(())
}
