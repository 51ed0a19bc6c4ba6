//! The log of the steps, `log.jsonl` in the output folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::model_files;

/// Name of the file.
pub const LOG: &str = "log.jsonl";

/// A line of the log.
#[derive(Serialize, Deserialize, Clone, Debug)]
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
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let mut kept = String::new();
        let mut lines = before.lines().peekable();
        while let Some(text) = lines.next() {
            match serde_json::from_str::<Line>(text) {
                Ok(line) if line.step <= done => kept += &format!("{text}\n"),
                Ok(_) => {}
                // A kill can cut the last line.
                Err(_) if lines.peek().is_none() && !before.ends_with('\n') => {}
                Err(_) => bail!(
                    "{} is not a log of this program: name another folder with `--output`, or move the file",
                    path.display()
                ),
            }
        }
        model_files::replace(&path, kept.as_bytes()).with_context(unwritable)?;
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

    #[test]
    fn log_on_full_disk_has_failed() {
        let path = PathBuf::from("/dev/full");
        let Ok(file) = OpenOptions::new().write(true).open(&path) else {
            return;
        };
        let error = None;
        let mut log = Log { path, file, error };
        log.write(&Line {
            step: 1,
            loss: 2.0,
            rate: 1e-5,
            norm: None,
            tokens: 8,
            seconds: 0.5,
        });
        assert!(log.has_failed());
        let error = log.check().unwrap_err().to_string();
        assert!(error.starts_with("/dev/full can't be written"), "{error}");
    }
}
