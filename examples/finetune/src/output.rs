//! Output of a training: a folder that `transformers` or `peft` loads.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::DType;

use crate::adapters::{self, Adapters};
use crate::decoder::Decoder;
use crate::weights;

/// Files of the base that the model is of no use without. They are copied as they are: each version of `transformers` reads what it
/// has written, and not always what another has.
const COPIED: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Returns an error if `folder` can't take a model: it is the base, or has a model of another training.
pub fn check(folder: &Path, base: &Path) -> Result<()> {
    let absolute = |path: &Path| std::fs::canonicalize(path).ok();
    let same = absolute(folder).is_some() && absolute(folder) == absolute(base);
    ensure!(
        !same,
        "`--output` is the folder of `--model`: name another, so that the base stays"
    );
    for name in [weights::WEIGHTS, adapters::WEIGHTS] {
        ensure!(
            !folder.join(name).exists(),
            "{} has `{name}` already, and no checkpoint of a training to go on with: name another folder with `--output`",
            folder.display()
        );
    }
    Ok(())
}

/// Writes `decoder`, which has no adapters, and what belongs to the model in `base`.
pub fn write_model(decoder: &Decoder, base: &Path, folder: &Path, dtype: DType) -> Result<()> {
    create(folder)?;
    for name in COPIED {
        let from = base.join(name);
        if from.exists() {
            let copied = std::fs::copy(&from, folder.join(name));
            copied.with_context(|| format!("{} can't be copied", from.display()))?;
        }
    }
    weights::save(decoder, &folder.join(weights::WEIGHTS), dtype)
}

/// Writes the adapters of `decoder`.
pub fn write_adapters(
    decoder: &Decoder,
    adapters: &Adapters,
    base: &Path,
    folder: &Path,
) -> Result<()> {
    create(folder)?;
    adapters.save(decoder, base, folder)
}

fn create(folder: &Path) -> Result<()> {
    let created = std::fs::create_dir_all(folder);
    created.with_context(|| format!("{} can't be created", folder.display()))
}
