//! Files of tensors that `transformers` and `peft` read. They contain finite numbers only.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::store::burn_pack::Tensor as PackTensor;
use burn::store::{
    KeyRemapper, ModuleAdapter, ModuleSnapshot, PathFilter, SafetensorsStore, bridge,
};
use burn::tensor::DType;

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
    let mut store = SafetensorsStore::from_file(&incomplete)
        .overwrite(true)
        .clear_metadata()
        .metadata("format", "pt")
        .with_to_adapter(adapter)
        .filter(filter)
        .remap(names);
    let mut write = || -> Result<()> {
        // The store creates a file for its owner alone.
        let permissions = std::fs::File::create(&incomplete)?
            .metadata()?
            .permissions();
        decoder.save_into(&mut store)?;
        std::fs::set_permissions(&incomplete, permissions)?;
        Ok(std::fs::rename(&incomplete, file)?)
    };
    let renamed = write();
    if renamed.is_err() {
        // A part of a file takes the room that the next try needs.
        let _ = std::fs::remove_file(&incomplete);
    }
    renamed.with_context(|| format!("{} can't be written", file.display()))
}

/// Returns an error for a number that is not finite in the tensors of `decoder` that `filter` selects.
pub fn check_finite(
    decoder: &Decoder,
    adapter: Box<dyn ModuleAdapter>,
    filter: PathFilter,
) -> Result<()> {
    for tensor in decoder.collect(Some(filter), Some(adapter), false) {
        let (name, dtype) = (tensor.name.clone(), tensor.dtype);
        let name = names::in_files(&name);
        let is_finite = is_finite(tensor).with_context(|| format!("`{name}` can't be read"))?;
        ensure!(
            is_finite,
            "`{name}` has a number that is not finite in {}: lower `--learning-rate`, or use `--dtype f32` and `--weights f32`",
            dtype.name()
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
