//! Documents of the training, from a file.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;

use crate::tokens::{Encoded, Tokens};

/// Returns the documents in the file at `path` as tokens: with the extension `jsonl` or `json` each line is one, else the file is one
/// text.
///
/// # Errors
///
/// If there is none, or one can't be read: the error has the line.
pub fn read(path: &Path, tokens: &Tokens) -> Result<Vec<Encoded>> {
    let name = path.display();
    let kind = path.extension().and_then(|kind| kind.to_str());
    let documents = match kind {
        Some("jsonl" | "json") => lines(path, tokens)?,
        _ => {
            let bytes = std::fs::read(path).with_context(|| format!("{name} can't be read"))?;
            let text = String::from_utf8(bytes).map_err(|error| {
                let valid = error.utf8_error().valid_up_to();
                let line = error.as_bytes()[..valid]
                    .split(|byte| *byte == b'\n')
                    .count();
                anyhow::anyhow!("{name}:{line}: this is no UTF-8 text")
            })?;
            match text.trim().is_empty() {
                true => Vec::new(),
                false => vec![tokens.text(&text).with_context(|| name.to_string())?],
            }
        }
    };
    ensure!(!documents.is_empty(), "{name} contains no text");
    Ok(documents)
}

fn lines(path: &Path, tokens: &Tokens) -> Result<Vec<Encoded>> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("{name} can't be read"))?;
    let mut documents = Vec::new();
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let place = || format!("{name}:{}", index + 1);
        let line = line.with_context(place)?;
        if line.trim().is_empty() {
            continue;
        }
        documents.push(document(&line, tokens).with_context(place)?);
    }
    Ok(documents)
}

/// Returns the document of a line of JSON: an object with `text`, or with `messages`.
fn document(line: &str, tokens: &Tokens) -> Result<Encoded> {
    let value: Json =
        serde_json::from_str(line).context("the line is no JSON: write one object in each line")?;
    if let Some(text) = value["text"].as_str() {
        ensure!(!text.trim().is_empty(), "`text` is empty");
        return tokens.text(text);
    }
    let Some(messages) = value["messages"].as_array() else {
        bail!("a line is an object with `text`, a text, or with `messages`, a list");
    };
    for message in messages {
        ensure!(
            message["role"].is_string() && message["content"].is_string(),
            "each of the `messages` has a `role` and a `content`, which are texts"
        );
    }
    tokens.chat(messages)
}
