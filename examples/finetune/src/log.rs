//! The log of the steps, `log.jsonl` in the output folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::replace::replace;

/// Name of the file.
pub const LOG: &str = "log.jsonl";

/// The beginning of each line.
const BEGINNING: &str = "{\"step\":";

/// A line of the log.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Number of the step, from 1.
    pub step: usize,
    pub loss: f64,
    /// Learning rate.
    pub rate: f64,
    /// Global norm of the gradients, if it was measured.
    pub norm: Option<f64>,
    /// Tokens of the step.
    pub tokens: usize,
    /// Time of the step.
    pub seconds: f64,
}

/// The file, with the first error in writing to it.
pub struct Log {
    path: PathBuf,
    file: File,
    error: Option<io::Error>,
}

impl Log {
    /// Opens the log in `folder`, and removes the lines after step `done`: those steps are trained again.
    pub fn open(folder: &Path, done: usize) -> Result<Self> {
        let path = folder.join(LOG);
        let unwritable = || format!("{} can't be written", path.display());
        let foreign = || {
            anyhow!(
                "{} is not a log of this program: name another folder with `--output`, or move the file",
                path.display()
            )
        };
        let before = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            before => before.with_context(|| format!("{} can't be read", path.display()))?,
        };
        let before = String::from_utf8(before).map_err(|_| foreign())?;
        let mut kept = String::new();
        let mut lines = before.lines().peekable();
        while let Some(text) = lines.next() {
            match serde_json::from_str::<Line>(text) {
                Ok(line) if line.step <= done => kept += &format!("{text}\n"),
                Ok(_) => {}
                // A kill can cut the last line.
                Err(error)
                    if error.is_eof()
                        && BEGINNING.starts_with(text.get(..BEGINNING.len()).unwrap_or(text))
                        && lines.peek().is_none()
                        && !before.ends_with('\n') => {}
                Err(_) => return Err(foreign()),
            }
        }
        replace(&path, kept.as_bytes()).with_context(unwritable)?;
        let file = OpenOptions::new().append(true).open(&path);
        Ok(Self {
            file: file.with_context(unwritable)?,
            error: None,
            path,
        })
    }

    /// Writes a line. After an error nothing more is written.
    pub fn write(&mut self, line: &Line) {
        if self.error.is_none() {
            let text = serde_json::to_string(line).expect("all keys are strings") + "\n";
            self.error = self.file.write_all(text.as_bytes()).err();
        }
    }

    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the error in writing, if there was one.
    pub fn check(&self) -> Result<()> {
        match &self.error {
            None => Ok(()),
            Some(error) => Err(anyhow!("{} can't be written: {error}", self.path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Line = Line {
        step: 1,
        loss: 2.0,
        rate: 1e-5,
        norm: None,
        tokens: 8,
        seconds: 0.5,
    };

    fn refused(folder: &Path) -> String {
        let error = Log::open(folder, 0).err().unwrap();
        format!("{error:#}")
    }

    #[test]
    fn log_of_another_program_is_refused_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG);
        for text in [
            &b"{\"text\": \"a chat\"}"[..],
            b"{\"text\": \"a",
            b"{\"step\":1,\"lr\":2}",
            b"{\"step\":1,\"loss\":2,\"rate\":1,\"norm\":null,\"tokens\":1,\"seconds\":1,\"mine\":0}\n",
            b"a chat",
            b"\xff\n",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = refused(folder.path());
            assert!(error.contains("is not a log of this program"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
    }

    #[test]
    fn log_that_is_unreadable_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(LOG)).unwrap();
        let error = refused(folder.path());
        assert!(error.contains("log.jsonl can't be read"), "{error}");
    }

    #[test]
    fn log_cut_last_line_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG);
        let line = serde_json::to_string(&LINE).unwrap();
        for before in [String::new(), line.clone() + "\n"] {
            for end in 1..line.len() {
                std::fs::write(&path, format!("{before}{}", &line[..end])).unwrap();
                Log::open(folder.path(), 1).unwrap();
                assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
            }
        }
    }

    #[test]
    fn log_on_full_disk_has_failed() {
        let path = PathBuf::from("/dev/full");
        let Ok(file) = OpenOptions::new().write(true).open(&path) else {
            return;
        };
        let error = None;
        let mut log = Log { path, file, error };
        log.write(&LINE);
        assert!(log.has_failed());
        let error = log.check().unwrap_err().to_string();
        assert!(error.starts_with("/dev/full can't be written"), "{error}");
    }
}
