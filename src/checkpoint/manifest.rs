//! `training.json`, the manifest of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use super::folder;

pub(super) const MODEL: &str = "model.bpk";
pub(super) const OPTIMIZER: &str = "optimizer.bpk";
pub(super) const SCHEDULER: &str = "scheduler.bpk";
pub(super) const USER_DATA: &str = "user-data.cbor";

/// The files that `training.json` names.
pub(super) const ALL: [&str; 4] = [MODEL, OPTIMIZER, SCHEDULER, USER_DATA];

const FORMAT: u32 = 1;

/// The contents of `training.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    pub(super) step: u64,
    /// `true` if the model file has no frozen parameters.
    pub(super) trained_only: bool,
    /// The paths of the parameters that Muon updates; `None` if neither Muon nor SGD with momentum updates a parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) orthogonalized: Option<BTreeSet<String>>,
    files: BTreeMap<String, Checksum>,
}

/// The field that every format has.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

impl Manifest {
    /// Writes `training.json` for the files that are in `folder`.
    pub(super) fn write(
        folder: &Path,
        step: u64,
        trained_only: bool,
        orthogonalized: Option<BTreeSet<String>>,
    ) -> Result<(), CheckpointError> {
        let mut files = BTreeMap::new();
        for name in ALL {
            let path = folder.join(name);
            let checksum = Checksum::of(&path);
            let checksum = checksum.map_err(|error| CheckpointError::cannot_write(&path, error))?;
            files.insert(name.to_string(), checksum);
        }
        let manifest = Self {
            format: FORMAT,
            step,
            trained_only,
            orthogonalized,
            files,
        };
        let bytes = serde_json::to_vec_pretty(&manifest).expect("all keys are strings");
        // A rename, so that an incomplete file never has this name.
        let temporary = folder.join("training.tmp");
        folder::write(&temporary, &bytes)?;
        folder::rename(&temporary, &folder.join(folder::TRAINING))
    }

    /// Reads the `training.json` of `step` in `folder`, and checks these files.
    pub(super) fn read(folder: &Path, step: u64, files: &[&str]) -> Result<Self, CheckpointError> {
        let path = folder.join(folder::TRAINING);
        let unreadable = |reason: String| CheckpointError::unreadable(&path, reason);
        let bytes = fs::read(&path).map_err(|error| unreadable(error.to_string()))?;
        let Head { format } =
            serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
        if format != FORMAT {
            return Err(unreadable(format!(
                "it has format {format}, and this version of backburn reads format {FORMAT}: use the version that wrote it"
            )));
        }
        let manifest: Self =
            serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
        if manifest.step != step {
            return Err(unreadable(format!("it belongs to step {}", manifest.step)));
        }
        for name in files {
            let expected = manifest.files.get(*name);
            let expected = expected.ok_or_else(|| unreadable(format!("it lacks `{name}`")))?;
            expected.check(folder.join(name))?;
        }
        Ok(manifest)
    }
}

/// Length and CRC-32 of a file.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Checksum {
    bytes: u64,
    crc32: u32,
}

impl Checksum {
    fn of(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    bytes += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let crc32 = hasher.finalize();
        Ok(Self { bytes, crc32 })
    }

    /// Returns an error if `file` has another checksum.
    fn check(&self, file: PathBuf) -> Result<(), CheckpointError> {
        let reason = match Self::of(&file) {
            Ok(found) if found == *self => return Ok(()),
            Ok(found) if found.bytes != self.bytes => {
                format!("it has {} bytes instead of {}", found.bytes, self.bytes)
            }
            Ok(_) => "its checksum is wrong".to_string(),
            Err(error) if error.kind() == ErrorKind::NotFound => "it is missing".to_string(),
            Err(error) => error.to_string(),
        };
        Err(CheckpointError::unreadable(&file, reason))
    }
}
