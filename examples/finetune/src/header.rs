//! The header of a safetensors file: types, shapes and places of its tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use burn::tensor::DType;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::tensor_file::are_finite;

/// The longest header that Hugging Face's library reads.
const MAX_BYTES: u64 = 100_000_000;

/// Bytes that are read at once: a number of whole elements.
const CHUNK: usize = 1 << 20;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Entry {
    file: PathBuf,
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Number of elements.
    pub elements: u64,
    /// Place of the first byte in the file.
    start: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Written {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// Returns the tensors in `file` by name.
pub fn read(file: &Path) -> Result<BTreeMap<String, Entry>> {
    let mut opened = File::open(file)?;
    let mut length = [0; 8];
    opened.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    ensure!(length <= MAX_BYTES, "its header has {length} bytes");
    let mut header = Vec::new();
    opened.take(length).read_to_end(&mut header)?;
    let all: BTreeMap<String, Json> = serde_json::from_slice(&header)?;
    let tensors = all.into_iter().filter(|(name, _)| name != "__metadata__");
    let entry = |(name, written)| -> Result<(String, Entry)> {
        let Written {
            dtype,
            shape,
            data_offsets: [start, end],
        } = serde_json::from_value(written)?;
        let bytes = end.checked_sub(start).context("an offset is wrong")?;
        let file = file.to_path_buf();
        let start = start.checked_add(8 + length);
        let start = start.context("an offset is wrong")?;
        let mut sizes = shape.iter();
        let elements = sizes.try_fold(1, |all: u64, size| all.checked_mul(*size as u64));
        let elements = elements.context("a shape is wrong")?;
        let entry = Entry {
            file,
            dtype,
            shape,
            elements,
            start,
            bytes,
        };
        Ok((name, entry))
    };
    tensors.map(entry).collect()
}

impl Entry {
    /// Returns the type of the tensor, if it is a float type of Burn.
    pub fn float_type(&self) -> Option<DType> {
        Some(match self.dtype.as_str() {
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "F32" => DType::F32,
            "F64" => DType::F64,
            _ => return None,
        })
    }

    /// Returns `true` if the tensor has no infinity and no NaN.
    pub fn is_finite(&self) -> Result<bool> {
        let Some(dtype) = self.float_type() else {
            return Ok(true);
        };
        let mut file = self.open()?;
        let mut left = self.bytes as usize;
        let mut bytes = vec![0; CHUNK.min(left)];
        while left > 0 {
            let count = left.min(CHUNK);
            file.read_exact(&mut bytes[..count])?;
            if !are_finite(&bytes[..count], dtype) {
                return Ok(false);
            }
            left -= count;
        }
        Ok(true)
    }

    /// Returns `true` if both have the same type, shape and bytes.
    pub fn equals(&self, other: &Self) -> Result<bool> {
        if (&self.dtype, &self.shape, self.bytes) != (&other.dtype, &other.shape, other.bytes) {
            return Ok(false);
        }
        let [mut one, mut two] = [self.open()?, other.open()?];
        let mut left = self.bytes as usize;
        let [mut first, mut second] = [vec![0; CHUNK], vec![0; CHUNK]];
        while left > 0 {
            let count = left.min(CHUNK);
            one.read_exact(&mut first[..count])?;
            two.read_exact(&mut second[..count])?;
            if first[..count] != second[..count] {
                return Ok(false);
            }
            left -= count;
        }
        Ok(true)
    }

    fn open(&self) -> Result<File> {
        let mut file = File::open(&self.file)?;
        file.seek(SeekFrom::Start(self.start))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_numbers_that_overflow_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        for (shape, offsets, words) in [
            ("[1]", [u64::MAX - 4, u64::MAX], "an offset is wrong"),
            ("[1]", [4, 0], "an offset is wrong"),
            ("[4294967296, 4294967296]", [0, 4], "a shape is wrong"),
        ] {
            let header = format!(
                r#"{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets:?}}}}}"#
            );
            let length = (header.len() as u64).to_le_bytes();
            std::fs::write(&file, [&length[..], header.as_bytes()].concat()).unwrap();
            assert_eq!(read(&file).unwrap_err().to_string(), words);
        }
    }
}
