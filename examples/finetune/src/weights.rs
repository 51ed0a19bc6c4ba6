//! Weights in the files of `transformers`: `model.safetensors`, or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use backburn::{QuantizedLora, WeightNames, load_from_store, load_quantized_from_store};
use burn::store::{
    BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleStore, PathFilter,
    PyTorchToBurnAdapter, SafetensorsStore,
};
use burn::tensor::{DType, FloatDType};
use serde::Deserialize;

use crate::config::DecoderConfig;
use crate::decoder::Decoder;
use crate::header::{self, Entry};
use crate::names;
use crate::tensor_file;

pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Returns the files that have the weights in `folder`.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let whole = folder.join(WEIGHTS);
    if whole.exists() {
        return Ok(vec![whole]);
    }
    let names: BTreeSet<String> = weight_map(folder)?.into_values().collect();
    let files: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
    for file in &files {
        ensure!(
            file.exists(),
            "{} is missing, which {INDEX} names: download it",
            file.display()
        );
    }
    Ok(files)
}

/// Returns the files of tensors by name, from the index in `folder`.
fn weight_map(folder: &Path) -> Result<BTreeMap<String, String>> {
    let index = folder.join(INDEX);
    ensure!(
        index.exists(),
        "{} has neither `{WEIGHTS}` nor `{INDEX}`: download one, or convert other files with `save_pretrained`",
        folder.display()
    );
    let read = || -> Result<Index> { Ok(serde_json::from_slice(&std::fs::read(&index)?)?) };
    let Index { weight_map } = read().with_context(|| index.display().to_string())?;
    ensure!(
        !weight_map.is_empty(),
        "`weight_map` in {} is empty: download the file again",
        index.display()
    );
    Ok(weight_map)
}

/// Checks the files in `folder`, and returns their tensors.
///
/// # Errors
///
/// If a number is not finite, if the index disagrees with the files, or if the head of a tied model differs from its embedding: `transformers` 5 would use it,
/// version 4 would drop it.
pub fn check(folder: &Path, config: &DecoderConfig) -> Result<BTreeMap<String, Entry>> {
    let mut tensors: BTreeMap<String, Entry> = BTreeMap::new();
    for file in files(folder)? {
        std::fs::File::open(&file).with_context(|| format!("{} can't be read", file.display()))?;
        let entries = header::read(&file).with_context(|| unreadable(&file))?;
        for (name, entry) in entries {
            let dtype = &entry.dtype;
            ensure!(
                !dtype.starts_with('F') || entry.float_type().is_some(),
                "`{name}` in {} has the type {dtype}, which Burn can't read: convert the model to bf16",
                file.display()
            );
            let is_finite = entry.is_finite().with_context(|| unreadable(&file))?;
            ensure!(
                is_finite,
                "`{name}` in {} has a number that is not finite, so nothing can be trained: download the file again",
                file.display()
            );
            ensure!(
                !tensors.contains_key(&name),
                "`{name}` is in two of the files in {}: download {INDEX} and the files again",
                folder.display()
            );
            tensors.insert(name, entry);
        }
    }
    if !folder.join(WEIGHTS).exists() {
        let named: BTreeSet<String> = weight_map(folder)?.into_keys().collect();
        let found: BTreeSet<String> = tensors.keys().cloned().collect();
        for (name, place) in [
            (
                named.difference(&found).next(),
                "the index, but not in a file",
            ),
            (
                found.difference(&named).next(),
                "a file, but not in the index",
            ),
        ] {
            ensure!(
                name.is_none(),
                "`{}` is in {place}: download {INDEX} and the files of {} again",
                name.map_or("", String::as_str),
                folder.display()
            );
        }
    }
    let one_of = |names: [&str; 2]| names.into_iter().find_map(|name| tensors.get(name));
    let embedding = one_of(["model.embed_tokens.weight", "embed_tokens.weight"]);
    let head = tensors.get("lm_head.weight");
    if let (true, Some(embedding), Some(head)) = (config.tied, embedding, head) {
        ensure!(
            embedding
                .equals(head)
                .with_context(|| folder.display().to_string())?,
            "`tie_word_embeddings` is true in the config, and `lm_head.weight` in {} differs from the embedding: set it to false to \
             train both, or remove `lm_head.weight`",
            folder.display()
        );
    }
    Ok(tensors)
}

/// Returns the smallest float type that holds every weight among `tensors`. A model that is `tied` has no weights for a head.
pub fn dtype(tensors: &BTreeMap<String, Entry>, tied: bool) -> DType {
    let weights = tensors.iter().filter(|(name, _)| is_loaded(name, tied));
    let types = weights.filter_map(|(_, tensor)| tensor.float_type());
    let both = |a: DType, b: DType| match [a, b] {
        _ if a == b => a,
        [DType::F64, _] | [_, DType::F64] => DType::F64,
        _ => DType::F32,
    };
    types.reduce(both).unwrap_or(DType::F32)
}

/// Returns `decoder` with the weights in `folder`, in `dtype`; and quantizes what `quantized` adapts.
///
/// Tensors are loaded one after the other, so there is never more than the model and one of them. The store maps the file into
/// memory, and what was read of it counts as resident until it is unmapped, so each layer is loaded by a store of its own.
pub fn load(
    mut decoder: Decoder,
    folder: &Path,
    dtype: FloatDType,
    quantized: Option<&QuantizedLora>,
) -> Result<Decoder> {
    let remapped = WeightNames::decoder().to_module();
    let store = |path: PathBuf| {
        SafetensorsStore::from_file(path)
            .with_from_adapter(PyTorchToBurnAdapter)
            .remap(remapped.clone())
            .allow_partial(true)
    };
    let mut missing: Option<BTreeSet<String>> = None;
    for file in files(folder)? {
        let keys = store(file.clone()).keys();
        let keys = keys.with_context(|| unreadable(&file))?;
        let mut unused: BTreeSet<String> = keys.iter().cloned().collect();
        let mut parts: BTreeSet<&str> = keys.iter().map(|key| part(key)).collect();
        if parts.is_empty() {
            parts.insert("");
        }
        for part in parts {
            let pattern = format!("^{}", part.replace('.', r"\."));
            let store = |path| store(path).with_regex(&pattern);
            let applied;
            let loaded = match quantized {
                None => load_from_store(decoder, &file, store, dtype),
                Some(lora) => load_quantized_from_store(decoder, &file, store, dtype, lora.clone()),
            };
            (decoder, applied) = loaded.map_err(|error| anyhow!(names::in_files(&error)))?;
            let left = applied.missing.into_iter().map(|(path, _)| path);
            let left: BTreeSet<String> = left.chain(applied.skipped).collect();
            missing = Some(match missing {
                None => left,
                Some(before) => before.intersection(&left).cloned().collect(),
            });
            let left: BTreeSet<String> = applied.unused.into_iter().collect();
            unused = unused.intersection(&left).cloned().collect();
        }
        unused.retain(|it| !is_known(it));
        ensure!(
            unused.is_empty(),
            "{} has tensors that are not in the config: {}",
            file.display(),
            names::in_files(&format!("{unused:?}"))
        );
    }
    let missing = missing.with_context(|| {
        format!(
            "{} has no weights: download the files `*.safetensors` of the model",
            folder.display()
        )
    })?;
    // A later file leaves the adapters of an earlier one as they are.
    let missing: Vec<String> = missing
        .into_iter()
        .filter(|it| !it.contains("lora."))
        .map(|it| names::in_files(&it))
        .collect();
    ensure!(
        missing.is_empty(),
        "the files in {} lack {missing:?}: download all files of the model again",
        folder.display()
    );
    Ok(decoder)
}

fn unreadable(file: &Path) -> String {
    format!(
        "{} is incomplete or of another format: download it again",
        file.display()
    )
}

/// Returns the beginning of a name that a layer, or all tensors outside of layers, have in common.
fn part(name: &str) -> &str {
    let dots = if name.starts_with("layers.") { 1 } else { 0 };
    let end = name.match_indices('.').nth(dots);
    end.map_or(name, |(end, _)| &name[..=end])
}

/// Returns `true` for a tensor that a file may have in addition: the table of rotations of old files, and the head of a tied model.
fn is_known(name: &str) -> bool {
    is_rotation(name) || name == "head.weight"
}

fn is_rotation(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}

/// Returns `true` if the tensor with this name in a file is a part of the model, which has no head of its own if it is `tied`.
pub fn is_loaded(name: &str, tied: bool) -> bool {
    !(is_rotation(name) || tied && name == "lm_head.weight")
}

/// Writes the weights of `decoder`, which has no adapters, to `file` in `dtype`.
pub fn save(decoder: &Decoder, file: &Path, dtype: DType) -> Result<()> {
    let adapter = BurnToPyTorchAdapter.chain(FloatCastAdapter::to(dtype));
    let names = WeightNames::decoder().to_file();
    tensor_file::write(decoder, file, adapter, PathFilter::all(), names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn weights_of_several_types_have_that_which_holds_all() {
        let folder = tempfile::tempdir().unwrap();
        for (types, expected) in [
            (["BF16", "F32"], DType::F32),
            (["F32", "BF16"], DType::F32),
            (["BF16", "F16"], DType::F32),
            (["F32", "F64"], DType::F64),
            (["I64", "BF16"], DType::BF16),
        ] {
            let mut end = 0;
            let entries = types.map(|name| {
                let (start, bits) = (end, name.trim_start_matches(char::is_alphabetic));
                let bits: usize = if name == "BF16" {
                    16
                } else {
                    bits.parse().unwrap()
                };
                end += bits / 8;
                json!({"dtype": name, "shape": [1], "data_offsets": [start, end]})
            });
            let table = json!({"dtype": "F32", "shape": [0], "data_offsets": [end, end]});
            let header = json!({
                "a": entries[0], "b": entries[1],
                "model.layers.0.self_attn.rotary_emb.inv_freq": table, "lm_head.weight": table
            });
            let header = header.to_string();
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.bytes());
            bytes.resize(bytes.len() + end, 0);
            let file = folder.path().join(WEIGHTS);
            std::fs::write(&file, bytes).unwrap();
            let tensors = header::read(&file).unwrap();
            assert_eq!(dtype(&tensors, true), expected, "{types:?}");
        }
    }
}
