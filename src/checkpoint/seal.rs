use std::fmt::{Display, Formatter};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

/// What tells a file from others.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct Seal {
    bytes: u64,
    crc32: u32,
}

impl Seal {
    /// That of the file at `path`, which is read to its end.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
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
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let crc32 = hasher.finalize();
        Ok(Self { bytes, crc32 })
    }
}

impl Display for Seal {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, crc32 } = self;
        write!(f, "{bytes} bytes with CRC-32 {crc32:08x}")
    }
}
