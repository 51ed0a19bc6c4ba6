use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::disk;
use super::error::CheckpointError;
use super::part;
use super::seal::Seal;
use super::slot::Slot;

const NAME: &str = "checkpoint.json";
const FORMAT: u32 = 1;

/// What makes files a checkpoint.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    parts: Slot,
    seals: BTreeMap<String, Seal>,
}

/// What there is in any format.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

impl Manifest {
    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// That of the parts in `slot`.
    pub(super) fn of(slot: Slot, folder: &Path) -> Result<Self, CheckpointError> {
        let mut seals = BTreeMap::new();
        for part in part::ALL {
            let path = slot.path(part, folder);
            let seal = Seal::of(&path);
            let seal = seal.map_err(|error| CheckpointError::cannot_write(&path, error))?;
            seals.insert(part.to_string(), seal);
        }
        Ok(Self {
            format: FORMAT,
            parts: slot,
            seals,
        })
    }

    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = Self::path(folder);
        let Some(bytes) = Self::bytes(folder)? else {
            let folder = folder.to_path_buf();
            return Err(CheckpointError::NotThere { folder });
        };
        let unreadable = |error| CheckpointError::cannot_read(&path, error);
        let Head { format } = serde_json::from_slice(&bytes).map_err(unreadable)?;
        if format != FORMAT {
            return Err(CheckpointError::OtherFormat {
                file: path,
                found: format,
                known: FORMAT,
            });
        }
        serde_json::from_slice(&bytes).map_err(unreadable)
    }

    /// The slot of the checkpoint that is there, if one is, and says so.
    pub(super) fn slot(folder: &Path) -> Result<Option<Slot>, CheckpointError> {
        let Some(bytes) = Self::bytes(folder)? else {
            return Ok(None);
        };
        // Whatever is wrong with the rest.
        let manifest: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok(Slot::deserialize(&manifest["parts"]).ok())
    }

    fn bytes(folder: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
        let path = Self::path(folder);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CheckpointError::cannot_read(&path, error)),
        }
    }

    /// Takes the place of the one that is there: from now on this is the checkpoint.
    pub(super) fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = Self::path(folder);
        let bytes = serde_json::to_vec_pretty(self);
        let bytes = bytes.map_err(|error| CheckpointError::cannot_write(&path, error))?;
        disk::write(&path, &bytes)
    }

    /// Writes a file where one is written, and removes it.
    pub(super) fn try_write(folder: &Path) -> Result<(), CheckpointError> {
        let path = Self::path(folder);
        let unfinished = burn_pack::AtomicFile::create(&path);
        unfinished
            .map(drop)
            .map_err(|error| CheckpointError::cannot_write(&path, error))
    }

    /// Removes what killed writes of one have left.
    pub(super) fn remove_unfinished(folder: &Path) -> Result<(), CheckpointError> {
        let names = disk::names(folder)?.into_iter();
        names
            .filter(|name| disk::is_unfinished(name, NAME))
            .try_for_each(|name| disk::remove(&folder.join(name)))
    }

    /// The path of a part that is there as it was sealed.
    pub(super) fn checked(&self, part: &str, folder: &Path) -> Result<PathBuf, CheckpointError> {
        let file = self.parts.path(part, folder);
        let Some(expected) = self.seals.get(part) else {
            let reason = format!("it has no seal of {part}");
            return Err(CheckpointError::cannot_read(&Self::path(folder), reason));
        };
        match Seal::of(&file) {
            Ok(found) if found == *expected => Ok(file),
            Ok(found) => Err(CheckpointError::OtherPart {
                file,
                expected: expected.to_string(),
                found: found.to_string(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(CheckpointError::Missing { file })
            }
            Err(error) => Err(CheckpointError::cannot_read(&file, error)),
        }
    }
}
