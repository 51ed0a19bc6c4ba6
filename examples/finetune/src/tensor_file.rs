//! Files of tensors that `transformers` and `peft` read. They contain finite numbers only.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use burn::store::burn_pack::Tensor as PackTensor;
use burn::store::{KeyRemapper, ModuleAdapter, ModuleSnapshot, PathFilter, bridge};
use burn::tensor::DType;
use serde_json::{Map, json};

use crate::decoder::Decoder;
use crate::names;

/// Writes the tensors of `decoder` that `filter` selects. The file is complete as soon as it has its name.
///
/// # Errors
///
/// If a number is not finite: the error names the tensor.
pub fn write(
    decoder: &Decoder,
    file: &Path,
    adapter: impl ModuleAdapter + 'static,
    filter: PathFilter,
    names: KeyRemapper,
) -> Result<()> {
    check_finite(decoder, adapter.clone_box(), filter.clone())?;
    let incomplete = file.with_extension("safetensors.tmp");
    let tensors = decoder.collect(Some(filter), Some(Box::new(adapter)), false);
    let (tensors, _) = names.remap(tensors);
    // Its tables take memory.
    drop(names);
    let written = write_tensors(tensors, &incomplete);
    let renamed = written.and_then(|()| Ok(std::fs::rename(&incomplete, file)?));
    if renamed.is_err() {
        // A part of a file takes the room that the next try needs.
        let _ = std::fs::remove_file(&incomplete);
    }
    renamed.with_context(|| format!("{} can't be written", file.display()))
}

/// Writes `tensors` one after the other. (The store of Burn copies each once more.)
fn write_tensors(tensors: Vec<PackTensor>, file: &Path) -> Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0;
    for tensor in &tensors {
        let dtype = match tensor.dtype {
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::F32 => "F32",
            other => bail!("`{}` is in {}", tensor.name, other.name()),
        };
        let start = end;
        end += tensor.shape.num_elements() * tensor.dtype.size();
        let entry = json!({
            "dtype": dtype,
            "shape": tensor.shape.to_vec(),
            "data_offsets": [start, end],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(file)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for tensor in tensors {
        file.write_all(bridge::into_data(tensor)?.as_bytes())?;
    }
    Ok(file.sync_all()?)
}

/// Returns an error for a number that is not finite in the tensors of `decoder` that `filter` selects.
pub fn check_finite(
    decoder: &Decoder,
    adapter: Box<dyn ModuleAdapter>,
    filter: PathFilter,
) -> Result<()> {
    for tensor in decoder.collect(Some(filter), Some(adapter), false) {
        let (path, dtype) = (tensor.name.clone(), tensor.dtype);
        // Only for an error: the tables of the names take memory.
        let name = || names::in_files(&path.replace(".gamma", ".weight"));
        let is_finite = is_finite(tensor).with_context(|| format!("`{}` can't be read", name()))?;
        ensure!(
            is_finite,
            "`{}` has a number that is not finite in {}: lower `--learning-rate`{}",
            name(),
            dtype.name(),
            match dtype {
                DType::F16 => ", or write with `--dtype f32`",
                _ => "",
            }
        );
    }
    Ok(())
}

/// Returns `true` if the tensor has no infinity and no NaN: their exponents are all ones.
fn is_finite(tensor: PackTensor) -> Result<bool> {
    let dtype = tensor.dtype;
    let data = bridge::into_data(tensor)?;
    Ok(are_finite(data.as_bytes(), dtype))
}

/// Returns `true` if `bytes` of numbers in `dtype` have no infinity and no NaN.
pub fn are_finite(bytes: &[u8], dtype: DType) -> bool {
    let exponent_16 = match dtype {
        DType::F16 => 0x7c00,
        _ => 0x7f80,
    };
    match dtype {
        DType::F16 | DType::BF16 => {
            let mut numbers = bytes.as_chunks().0.iter().map(|it| u16::from_le_bytes(*it));
            numbers.all(|bits| bits & exponent_16 != exponent_16)
        }
        DType::F32 => {
            let mut numbers = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
            numbers.all(f32::is_finite)
        }
        DType::F64 => {
            let mut numbers = bytes.as_chunks().0.iter().map(|it| f64::from_le_bytes(*it));
            numbers.all(f64::is_finite)
        }
        _ => true,
    }
}
