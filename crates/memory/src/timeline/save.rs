use std::path::Path;

use super::super::error::MemoryError;
use super::super::file;
use super::MemoryTimeline;
use super::bytes::Bytes;

impl MemoryTimeline {
    /// Writes everything as JSON.
    ///
    /// # Errors
    ///
    /// If the file can't be written. What was there before is there still.
    pub fn save_json(&self, path: impl AsRef<Path>) -> Result<(), MemoryError> {
        let path = path.as_ref();
        let text =
            serde_json::to_string(self).map_err(|error| MemoryError::unwritable(path, error))?;
        file::write(path, text.as_bytes())
    }

    /// Writes the samples as CSV: seconds, phase, the bytes of each category, and the reserved ones.
    ///
    /// # Errors
    ///
    /// If the timeline is empty or damaged, or the file can't be written, in which case the old file stays.
    pub fn save_csv(&self, path: impl AsRef<Path>) -> Result<(), MemoryError> {
        self.check()?;
        let path = path.as_ref();
        let mut table = csv::Writer::from_writer(Vec::new());
        let mut write = || -> Result<(), csv::Error> {
            table.write_record([
                "seconds",
                "phase",
                "parameters",
                "gradients",
                "optimizer_state",
                "rest",
                "unassigned",
                "reserved",
            ])?;
            for sample in &self.samples {
                let Bytes {
                    parameters,
                    gradients,
                    optimizer_state,
                    rest,
                    unassigned,
                } = sample.bytes;
                let bytes = [parameters, gradients, optimizer_state, rest, unassigned];
                let start = [sample.seconds.to_string(), self.phase(sample).to_string()];
                let reserved = sample.reserved.map(|bytes| bytes.to_string());
                let row = start.into_iter().chain(bytes.map(|b| b.to_string()));
                table.write_record(row.chain([reserved.unwrap_or_default()]))?;
            }
            Ok(())
        };
        write().map_err(|error| MemoryError::unwritable(path, error))?;
        let text = table.into_inner();
        let text = text.map_err(|error| MemoryError::unwritable(path, error))?;
        file::write(path, &text)
    }
}
