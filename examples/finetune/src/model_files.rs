//! Files of a model that `transformers` loads, and of adapters that `peft` loads.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::DType;

use crate::adapters::{self, Adapters};
use crate::chat::TOOL_USE_FILE;
use crate::decoder::Decoder;
use crate::options::Options;
use crate::replace::{replace, replace_with};
use crate::weights;

/// Files of the base that the model needs, those of its config first. They are copied as they are: a version of `transformers` does
/// not read all files of another version.
pub const COPIED: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    TOOL_USE_FILE,
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// The files of [`COPIED`] that a tokenizer consists of. Adapters are written with them.
const TOKENIZER: &[&str] = COPIED.split_at(2).1;

/// The description of the model.
pub const CARD: &str = "README.md";

/// Returns the names of the files of the result, with those in the base.
pub fn files(options: &Options) -> Vec<&'static str> {
    let (copied, written): (_, &[_]) = match options.writes_adapters() {
        true => (TOKENIZER, &[adapters::WEIGHTS, adapters::CONFIG, CARD]),
        false => (COPIED, &[weights::WEIGHTS, CARD]),
    };
    let copied = copied
        .iter()
        .filter(|name| options.model.join(name).exists());
    copied.chain(written).copied().collect()
}

/// Writes `decoder`, which has no adapters, and what belongs to the model in `base`.
pub fn write_model(decoder: &Decoder, base: &Path, folder: &Path, dtype: DType) -> Result<()> {
    create(folder)?;
    // First: if a weight can't be written, an earlier result in the folder stays whole.
    weights::save(decoder, &folder.join(weights::WEIGHTS), dtype)?;
    copy(COPIED, base, folder)?;
    set_dtype(&folder.join("config.json"), dtype)
}

/// Sets the float type in a config, in which `transformers` loads the weights. A config with this type stays as it is.
fn set_dtype(file: &Path, dtype: DType) -> Result<()> {
    let change = || -> Result<()> {
        let mut config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&std::fs::read(file)?)?;
        let name = match dtype {
            DType::BF16 => "bfloat16",
            DType::F16 => "float16",
            _ => "float32",
        };
        // Version 4 of `transformers` reads the second one.
        let keys = ["dtype", "torch_dtype"];
        let declared: Vec<_> = keys.iter().filter_map(|key| config.get(*key)).collect();
        if !declared.is_empty() && declared.iter().all(|it| **it == name) {
            return Ok(());
        }
        for key in keys {
            if config.contains_key(key) || key == "torch_dtype" {
                config.insert(key.to_owned(), name.into());
            }
        }
        Ok(replace(file, &serde_json::to_vec_pretty(&config)?)?)
    };
    change().with_context(|| format!("{} can't be changed", file.display()))
}

/// Writes the adapters of `decoder`, and the tokenizer in `base`.
pub fn write_adapters(
    decoder: &Decoder,
    adapters: &Adapters,
    base: &Path,
    folder: &Path,
) -> Result<()> {
    create(folder)?;
    copy(TOKENIZER, base, folder)?;
    adapters.save(decoder, base, folder)
}

/// Copies the files with these `names` that `base` has.
fn copy(names: &[&str], base: &Path, folder: &Path) -> Result<()> {
    for name in names {
        let from = base.join(name);
        if from.exists() {
            let to = folder.join(name);
            create(to.parent().unwrap_or(folder))?;
            let copied = File::open(&from).and_then(|mut from| {
                replace_with(&to, |to| std::io::copy(&mut from, to).map(drop))
            });
            copied.with_context(|| format!("{} can't be copied", from.display()))?;
        }
    }
    Ok(())
}

/// Creates `folder`, if it does not exist.
pub fn create(folder: &Path) -> Result<()> {
    let created = std::fs::create_dir_all(folder);
    created.with_context(|| format!("{} can't be created", folder.display()))
}
