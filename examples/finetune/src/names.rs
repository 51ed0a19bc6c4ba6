//! Names of tensors in messages.

use std::sync::LazyLock;

use backburn::WeightNames;
use burn::store::KeyRemapper;

static TO_FILE: LazyLock<KeyRemapper> = LazyLock::new(|| WeightNames::decoder().to_file());

/// Returns `text` with the names that tensors have in files of `transformers`, instead of their paths in the decoder.
pub fn in_files(text: &(impl ToString + ?Sized)) -> String {
    let text = text.to_string();
    // Paths of files are words, too, which stay.
    let is_of_path = |c: char| c == '/' || c == '\\';
    let starts_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || is_of_path(c);
    let is_of_name = |c: char| starts_name(c) || c == '.';
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find(starts_name) {
        let (before, word) = rest.split_at(start);
        let end = word.find(|c| !is_of_name(c)).unwrap_or(word.len());
        // A point after a word ends the sentence.
        let name = word[..end].trim_end_matches('.');
        renamed += before;
        renamed += &match name.contains(is_of_path) {
            true => name.to_owned(),
            false => name_in_file(name),
        };
        rest = &word[name.len()..];
    }
    renamed + rest
}

/// Returns the name in a file of the tensor at a path in the decoder, and other words as they are.
fn name_in_file(path: &str) -> String {
    let patterns = TO_FILE.patterns.iter();
    let renamed = patterns.fold(path.to_owned(), |name, (from, to)| {
        from.replace_all(&name, to.as_str()).into_owned()
    });
    match renamed == path {
        true => renamed,
        // Norms have other names in Burn.
        false => renamed.replace("norm.gamma", "norm.weight"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_names_of_files() {
        for (text, expected) in [
            (
                "`layers.1.mlp.output.weight` is missing",
                "`model.layers.1.mlp.down_proj.weight` is missing",
            ),
            (
                "norm.gamma, head.weight",
                "model.norm.weight, lm_head.weight",
            ),
            (
                "[\"layers.0.norm_1.gamma\"]",
                "[\"model.layers.0.input_layernorm.weight\"]",
            ),
            ("the norm. of 1.5 layers", "the norm. of 1.5 layers"),
            ("in /models/norm.v2/head.pt", "in /models/norm.v2/head.pt"),
        ] {
            assert_eq!(in_files(&text), expected);
        }
    }
}
