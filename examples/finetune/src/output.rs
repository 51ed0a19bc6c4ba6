//! The output folder of a training.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::adapters;
use crate::checksum::checksum;
use crate::log::LOG;
use crate::model_files::{CARD, COPIED, create};
use crate::replace::replace;
use crate::saved::Settings;
use crate::weights;

/// The list of the files that this program has written, in the output folder.
const LIST: &str = "finetune.json";

/// The file that a running training locks. A process that is killed releases it.
const LOCK: &str = "finetune.lock";

/// An output folder, locked for one training.
pub struct Output {
    folder: PathBuf,
    list: List,
    /// Files that may be replaced.
    overwrite: bool,
    _lock: File,
}

/// Contents of [`LIST`].
#[derive(Serialize, Deserialize, Default)]
struct List {
    /// Files and their checksums; `None` while they are written.
    files: BTreeMap<String, Option<String>>,
    /// The training whose result is in the folder.
    finished: Option<Finished>,
}

/// Identity of a finished training.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Finished {
    pub settings: Settings,
    pub steps: usize,
    /// Options of the written files.
    pub format: String,
}

impl Output {
    /// Creates and locks `folder`.
    ///
    /// # Errors
    ///
    /// If it is the folder of one of the `sources`, which are options and their folders, or if another training writes to it.
    pub fn open(folder: &Path, sources: &[(&str, &Path)], overwrite: bool) -> Result<Self> {
        let absolute = |path: &Path| std::fs::canonicalize(path).ok();
        for (option, source) in sources {
            let same = absolute(folder).is_some() && absolute(folder) == absolute(source);
            ensure!(
                !same,
                "`--output` is the folder of `{option}`: name another, so that its files stay"
            );
        }
        create(folder)?;
        let is_known = folder.join(LOCK).exists();
        let lock = lock(folder)?;
        if is_known {
            remove_incomplete(folder)?;
        }
        let file = folder.join(LIST);
        let list = match file.exists() {
            false => List::default(),
            true => {
                let read =
                    || -> Result<List> { Ok(serde_json::from_slice(&std::fs::read(&file)?)?) };
                read().with_context(|| format!("{} can't be read: remove it", file.display()))?
            }
        };
        Ok(Self {
            folder: folder.to_path_buf(),
            list,
            overwrite,
            _lock: lock,
        })
    }

    /// Returns an error if there are files of a model that this program has not written, or that were changed since. With
    /// `--overwrite` these are removed when the result is written.
    pub fn check_foreign(&self) -> Result<()> {
        let mut foreign = self.foreign()?;
        foreign.extend(self.foreign_checkpoints()?);
        ensure!(
            foreign.is_empty() || self.overwrite,
            "{} has files that this program has not written, or that were changed since: {}. Name another folder with `--output`, or \
             replace them with `--overwrite`",
            self.folder.display(),
            foreign.join(", ")
        );
        Ok(())
    }

    /// Returns the training whose result is in the folder, if its files are there and its weights are unchanged.
    pub fn finished(&self) -> Result<Option<&Finished>> {
        let mut names = self.list.files.keys();
        let is_complete = names.all(|name| self.folder.join(name).exists());
        let is_weights = |name: &String| name.ends_with(".safetensors");
        let is_unchanged = is_complete && !self.foreign()?.iter().any(is_weights);
        Ok(self.list.finished.as_ref().filter(|_| is_unchanged))
    }

    /// Returns an error if there is a result, which a training from the beginning would replace.
    pub fn check_empty(&self) -> Result<()> {
        for name in [weights::WEIGHTS, adapters::WEIGHTS] {
            ensure!(
                self.overwrite || !self.folder.join(name).exists(),
                "{} has `{name}` of another training already, and no checkpoint to resume from: name another folder with `--output`, or \
                 replace it with `--overwrite`",
                self.folder.display()
            );
        }
        Ok(())
    }

    /// Writes a result of files with these `names` with `write`, and removes other files of a model.
    pub fn replace(
        &mut self,
        names: &[&str],
        finished: Finished,
        write: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        // A file can be new since the beginning of the training.
        self.check_foreign()?;
        let foreign = self.foreign()?;
        let others: BTreeSet<String> = foreign
            .into_iter()
            .chain(self.list.files.keys().cloned())
            .filter(|name| !names.contains(&name.as_str()))
            .collect();
        self.list.finished = None;
        for name in names {
            self.list.files.insert((*name).to_owned(), None);
        }
        self.save_list()?;
        write(&self.folder)?;
        for name in others {
            let file = self.folder.join(&name);
            if file.is_file() {
                let removed = std::fs::remove_file(&file);
                removed.with_context(|| format!("{} can't be removed", file.display()))?;
            }
            self.list.files.remove(&name);
        }
        for name in names {
            let written = checksum(&self.folder.join(name))?;
            self.list.files.insert((*name).to_owned(), Some(written));
        }
        self.list.finished = Some(finished);
        self.save_list()
    }

    /// Returns the files of a model that this program has not written as they are.
    fn foreign(&self) -> Result<Vec<String>> {
        let folder = &self.folder;
        let unreadable = || format!("{} can't be read", folder.display());
        let mut foreign = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !is_of_model(&name) || !entry.path().is_file() {
                continue;
            }
            if !self.is_ours(&name)? {
                foreign.push(name);
            }
        }
        for name in COPIED.iter().filter(|name| name.contains('/')) {
            if folder.join(name).is_file() && !self.is_ours(name)? {
                foreign.push((*name).to_owned());
            }
        }
        foreign.sort();
        Ok(foreign)
    }

    /// Returns the folders with the names of checkpoints that this program has not written. A save would replace them.
    fn foreign_checkpoints(&self) -> Result<Vec<String>> {
        let mut foreign = Vec::new();
        for parent in ["checkpoints", "checkpoints/best"] {
            for step in std::fs::read_dir(self.folder.join(parent))
                .into_iter()
                .flatten()
            {
                let step = step.with_context(|| format!("{parent} can't be read"))?;
                let name = step.file_name().to_string_lossy().into_owned();
                let number = name.strip_prefix("step-").map(str::parse::<u64>);
                let is_saved = step.path().join("training.json").exists();
                if is_saved || !matches!(number, Some(Ok(_))) {
                    continue;
                }
                // A run that was killed may have left a part of its own.
                let mut files = std::fs::read_dir(step.path())
                    .into_iter()
                    .flatten()
                    .flatten();
                let is_foreign = |file: std::fs::DirEntry| {
                    let name = file.file_name().to_string_lossy().into_owned();
                    !name.ends_with(".bpk")
                        && !name.ends_with(".cbor")
                        && !name.starts_with("training.json")
                };
                if files.any(is_foreign) {
                    foreign.push(format!("{parent}/{name}"));
                }
            }
        }
        Ok(foreign)
    }

    /// Returns `true` if this program has written the file as it is.
    fn is_ours(&self, name: &str) -> Result<bool> {
        Ok(match self.list.files.get(name) {
            None => false,
            Some(None) => true,
            Some(Some(written)) => *written == checksum(&self.folder.join(name))?,
        })
    }

    fn save_list(&self) -> Result<()> {
        let file = self.folder.join(LIST);
        let text = serde_json::to_string_pretty(&self.list)? + "\n";
        let written = replace(&file, text.as_bytes());
        written.with_context(|| format!("{} can't be written", file.display()))
    }
}

/// Returns `true` for the name of a file that this program writes, or that is loaded with a model.
fn is_of_model(name: &str) -> bool {
    COPIED.contains(&name)
        || [adapters::CONFIG, weights::INDEX, CARD].contains(&name)
        || name.ends_with(".safetensors")
        || (name.starts_with("pytorch_model") && name.ends_with(".bin"))
}

/// Locks `folder` until the returned file is dropped.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    // Windows locks no file that is open only to append.
    let file = File::options()
        .read(true)
        .append(true)
        .create(true)
        .open(&path);
    let file = file.with_context(|| format!("{} can't be written", path.display()))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!(
            "another run trains in {}: wait until it ends, or name another folder with `--output`",
            folder.display()
        ),
        // Some file systems have no locks.
        Err(TryLockError::Error(_)) | Ok(()) => Ok(file),
    }
}

/// Removes the incomplete files of a run that was killed while it wrote.
fn remove_incomplete(folder: &Path) -> Result<()> {
    let all = COPIED.iter().copied();
    let all = all.chain([LIST, LOG, CARD, weights::WEIGHTS]);
    let all = all.chain([adapters::WEIGHTS, adapters::CONFIG]);
    for name in all {
        let file = folder.join(format!("{name}.tmp"));
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context(format!("{} can't be removed", file.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
