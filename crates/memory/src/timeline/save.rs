use std::path::Path;

use super::super::error::MemoryError;
use super::MemoryTimeline;

impl MemoryTimeline {
    /// Writes everything as JSON.
    ///
    /// # Errors
    ///
    /// If the file can't be written.
    pub fn save_json(&self, path: impl AsRef<Path>) -> Result<(), MemoryError> {
        let path = path.as_ref();
        let text =
            serde_json::to_string(self).map_err(|error| MemoryError::unwritable(path, error))?;
        std::fs::write(path, text).map_err(|error| MemoryError::unwritable(path, error))
    }
}
