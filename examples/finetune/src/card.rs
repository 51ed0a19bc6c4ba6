//! The description of a model, `README.md` in the output folder.

use std::path::Path;

use anyhow::{Context, Result};

use crate::losses::Losses;
use crate::model_files::CARD;
use crate::options::Options;
use crate::replace::replace;

/// Writes the description of the model that `options` have trained in `steps` steps to `folder`.
pub fn write(options: &Options, steps: usize, losses: Losses, folder: &Path) -> Result<()> {
    let base = name(&options.model);
    let data: Vec<_> = options.data.iter().map(|file| name(file)).collect();
    let data = data.join("`, `");
    let has_adapters = options.writes_adapters();
    let library = if has_adapters { "peft" } else { "transformers" };
    let kind = if has_adapters {
        "Adapters for"
    } else {
        "A fine-tuned"
    };
    let loss = |loss: Option<f64>| loss.map_or("-".to_owned(), |loss| format!("{loss:.4}"));
    let text = format!(
        "---\nbase_model: {}\nlibrary_name: {library}\npipeline_tag: text-generation\n---\n\n\
         # {kind} `{base}`\n\n\
         | | |\n|---|---|\n\
         | base | `{base}` |\n\
         | data | `{data}` |\n\
         | method | {} |\n\
         | steps | {steps} |\n\
         | rows per step | {} |\n\
         | learning rate | {:e} |\n\
         | held-out loss before | {} |\n\
         | held-out loss after | {} |\n",
        // A text of JSON is one of YAML.
        serde_json::Value::from(base.as_str()),
        options.method.name(),
        options.batch,
        options.learning_rate(),
        loss(losses.before),
        loss(losses.after),
    );
    let file = folder.join(CARD);
    replace(&file, text.as_bytes()).with_context(|| format!("{} can't be written", file.display()))
}

/// Returns the last part of a path, or the name of a model in the cache of the Hugging Face Hub,
/// `models--OWNER--NAME/snapshots/COMMIT`.
fn name(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or(path.to_path_buf());
    let part = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let snapshots = path.parent().filter(|it| it.ends_with("snapshots"));
    let cached = snapshots.and_then(Path::parent).map(part);
    let cached =
        cached.and_then(|name| Some(name.strip_prefix("models--")?.replacen("--", "/", 1)));
    cached.unwrap_or_else(|| part(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_cached_model_is_that_of_the_hub() {
        for (path, expected) in [
            (
                "hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/93efa2f",
                "HuggingFaceTB/SmolLM2-135M",
            ),
            ("hub/models--gpt2/snapshots/93efa2f", "gpt2"),
            ("models/mine", "mine"),
        ] {
            assert_eq!(name(Path::new(path)), expected);
        }
    }
}
