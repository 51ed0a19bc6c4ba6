//! The step folders of a checkpoint. A kill or a power failure at any time leaves the last complete one intact.
//!
//! # Invariants
//!
//! - A save writes `.step-N.tmp-PID`, flushes it, and renames it to `step-N`.
//! - A checkpoint that is replaced or removed is first renamed to `.step-N.old`. Readers use it while `step-N` does not exist, and
//!   the next save restores it or completes its removal.
//! - A folder without `training.json` is incomplete: that file is written last and removed first.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::training::{ALL, TRAINING};

/// A folder created by a save.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Step(u64),
    Temporary,
    Replaced(u64),
}

impl Entry {
    /// Parses the name of a folder; `None` if it was not created by a save.
    fn parse(name: &str) -> Option<Self> {
        let number = |text: &str| {
            let step = text.parse::<u64>().ok()?;
            (step.to_string() == text).then_some(step)
        };
        if let Some(text) = name.strip_prefix("step-") {
            return number(text).map(Self::Step);
        }
        let (text, kind) = name.strip_prefix(".step-")?.split_once('.')?;
        let step = number(text)?;
        match kind.strip_prefix("tmp-") {
            Some(process) => process.parse::<u32>().ok().map(|_| Self::Temporary),
            None => (kind == "old").then_some(Self::Replaced(step)),
        }
    }
}

pub(super) fn step_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step}"))
}

pub(super) fn temporary(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!(".step-{step}.tmp-{}", std::process::id()))
}

fn replaced(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!(".step-{step}.old"))
}

/// Returns the complete checkpoints in `folder` by step, and skips the others.
pub(super) fn complete(folder: &Path) -> Result<BTreeMap<u64, PathBuf>, CheckpointError> {
    let mut found = BTreeMap::new();
    for (entry, path) in entries(folder)? {
        let step = match entry {
            Entry::Step(step) => step,
            Entry::Replaced(step) if !step_folder(folder, step).exists() => step,
            Entry::Replaced(_) | Entry::Temporary => continue,
        };
        if is_complete(&path)? {
            found.insert(step, path);
        } else {
            log::warn!("skipped {}: it has no `{TRAINING}`", path.display());
        }
    }
    Ok(found)
}

/// Renames `temporary` to the folder of `step`, and replaces an existing checkpoint.
pub(super) fn publish(folder: &Path, temporary: &Path, step: u64) -> Result<(), CheckpointError> {
    let target = step_folder(folder, step);
    let is_there = fs::symlink_metadata(&target).is_ok();
    if is_there && !target.is_dir() {
        return Err(CheckpointError::cannot_write(&target, "it is not a folder"));
    }
    if is_there {
        rename(&target, &replaced(folder, step))?;
    }
    rename(temporary, &target)?;
    flush_folder(folder)?;
    if is_there && let Err(error) = discard(folder, step) {
        log::warn!("the replaced checkpoint of step {step} was not removed: {error}");
    }
    Ok(())
}

/// Removes the checkpoint of `step`.
pub(super) fn remove(folder: &Path, step: u64) -> Result<(), CheckpointError> {
    rename(&step_folder(folder, step), &replaced(folder, step))?;
    discard(folder, step)
}

/// Removes the remains of failed saves, and restores a checkpoint whose replacement was not completed.
pub(super) fn clean(folder: &Path) -> Result<(), CheckpointError> {
    for (entry, path) in entries(folder)? {
        match entry {
            Entry::Step(_) => {}
            Entry::Temporary => fs::remove_dir_all(&path).map_err(cannot_write(&path))?,
            Entry::Replaced(step) => {
                let target = step_folder(folder, step);
                if !is_complete(&path)? || is_complete(&target)? {
                    discard(folder, step)?;
                } else if !target.exists() {
                    rename(&path, &target)?;
                }
            }
        }
    }
    Ok(())
}

/// Removes a renamed checkpoint. Other files in it move to the folder of `step`.
fn discard(folder: &Path, step: u64) -> Result<(), CheckpointError> {
    let (path, target) = (replaced(folder, step), step_folder(folder, step));
    if path.is_symlink() {
        // Windows removes a link to a folder as a folder.
        let removed = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        return removed.map_err(cannot_write(&path));
    }
    for file in [TRAINING].iter().chain(&ALL) {
        let file = path.join(file);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(CheckpointError::cannot_write(&file, error));
            }
            _ => {}
        }
    }
    match fs::remove_dir(&path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
        Err(error) => return Err(CheckpointError::cannot_write(&path, error)),
    }
    if !target.exists() {
        return rename(&path, &target);
    }
    for entry in fs::read_dir(&path).map_err(cannot_write(&path))? {
        let entry = entry.map_err(cannot_write(&path))?;
        rename(&entry.path(), &target.join(entry.file_name()))?;
    }
    fs::remove_dir(&path).map_err(cannot_write(&path))
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
        let parsed = entry.file_name().to_str().and_then(Entry::parse);
        if let Some(parsed) = parsed.filter(|_| entry.path().is_dir()) {
            entries.push((parsed, entry.path()));
        }
    }
    Ok(entries)
}

fn is_complete(folder: &Path) -> Result<bool, CheckpointError> {
    let file = folder.join(TRAINING);
    let exists = file.try_exists();
    exists.map_err(|error| CheckpointError::unreadable(&file, error))
}

fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
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
    let probe = temporary(folder, 0);
    fs::create_dir(&probe).map_err(cannot_write(&probe))?;
    fs::remove_dir(&probe).map_err(cannot_write(&probe))
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
