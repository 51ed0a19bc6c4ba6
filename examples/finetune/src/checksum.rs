//! Checksums of files, to detect that they have changed.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result};
use crc32fast::Hasher;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 16;

/// Returns the CRC-32 of the file at `path` as text; `missing` if there is none.
pub fn checksum(path: &Path) -> Result<String> {
    let unreadable = || format!("{} can't be read", path.display());
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok("missing".to_owned()),
        opened => opened.with_context(unreadable)?,
    };
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer).with_context(unreadable)? {
            0 => return Ok(format!("crc32 {:08x}", hasher.finalize())),
            count => hasher.update(&buffer[..count]),
        }
    }
}
