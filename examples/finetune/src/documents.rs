//! Documents of the training, from files.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::IgnoredAny;
use serde_json::Value as Json;

use crate::line::Document;
use crate::tokens::{Encoded, Tokens};

/// A mark at the beginning of files in UTF-8, which some editors write. It is not text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Documents as tokens.
#[derive(Default)]
pub struct Documents {
    /// Each from a line or an entry of a file of JSON.
    pub entries: Vec<Encoded>,
    /// Each a whole file of text.
    pub texts: Vec<Encoded>,
    /// The number of chats in `entries`.
    pub chats: usize,
    /// The number of documents in which no token that ends a text counts.
    pub without_end: usize,
    /// The number of documents with a token that begins in the prompt and ends in the answer.
    pub crossing: usize,
}

impl Documents {
    /// Reads the files at `paths`, one after the other. The extension selects the format.
    ///
    /// # Errors
    ///
    /// If a file has no document, or one can't be read: the error has the line.
    pub fn read(paths: &[PathBuf], tokens: &Tokens) -> Result<Self> {
        let mut documents = Self::default();
        for path in paths {
            let name = path.display();
            let before = documents.len();
            let kind = path.extension().and_then(|kind| kind.to_str());
            match kind.unwrap_or_default().to_lowercase().as_str() {
                "jsonl" | "ndjson" => documents.lines(path, tokens)?,
                "json" => documents.json(path, tokens)?,
                "txt" | "md" => documents.text(path, tokens)?,
                _ => bail!(
                    "{name} has an extension that is not read: use `.txt` or `.md` for a text, `.jsonl` or `.ndjson` for lines of \
                     JSON, `.json` for a list or lines"
                ),
            }
            ensure!(
                documents.len() > before,
                "{name} contains no text: name another file"
            );
        }
        Ok(documents)
    }

    pub fn len(&self) -> usize {
        self.entries.len() + self.texts.len()
    }

    fn text(&mut self, path: &Path, tokens: &Tokens) -> Result<()> {
        let name = path.display();
        let text = read(path)?;
        let begin = text.trim_start();
        let line = begin.lines().next().unwrap_or_default();
        let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
        let is_lines = line.starts_with('{') && is_json(line);
        if is_lines || (begin.starts_with(['{', '[']) && is_json(begin)) {
            bail!("{name} contains JSON: rename it to `.jsonl` for lines, or `.json` for a list");
        }
        if !begin.is_empty() {
            let document = tokens.text(&text).with_context(|| name.to_string())?;
            self.without_end += usize::from(!tokens.has_end(&document));
            self.texts.push(document);
        }
        Ok(())
    }

    fn lines(&mut self, path: &Path, tokens: &Tokens) -> Result<()> {
        for (index, line) in BufReader::new(open(path)?).lines().enumerate() {
            let place = || format!("{}:{}", path.display(), index + 1);
            let line = line.context("the line can't be read: it must be text in UTF-8");
            let line = line.with_context(place)?;
            let line = match index {
                0 => line.trim_start_matches(BYTE_ORDER_MARK),
                _ => line.as_str(),
            };
            if !line.trim().is_empty() {
                let value = serde_json::from_str(line);
                let value = value.context("the line is not JSON: write one object in each line, or in `.json` a list of objects");
                let added = value.and_then(|value| self.add(value, line, tokens));
                added.with_context(place)?;
            }
        }
        Ok(())
    }

    /// Reads a list of objects, or lines.
    fn json(&mut self, path: &Path, tokens: &Tokens) -> Result<()> {
        let text = read(path)?;
        if !text.trim_start().starts_with('[') {
            return self.lines(path, tokens);
        }
        let name = path.display();
        let entries: Vec<Json> = serde_json::from_str(&text)
            .with_context(|| format!("{name} is not JSON: write a list of objects"))?;
        for (index, entry) in entries.into_iter().enumerate() {
            let place = || format!("{name}, entry {}", index + 1);
            self.add(entry, "", tokens).with_context(place)?;
        }
        if self.chats > 0 {
            check_integers(&text).with_context(|| name.to_string())?;
        }
        Ok(())
    }

    /// Adds the document of `value`, which was read from the line `json`.
    fn add(&mut self, value: Json, json: &str, tokens: &Tokens) -> Result<()> {
        let document = Document::new(value)?;
        let is_chat = matches!(document, Document::Chat(_));
        if is_chat {
            check_integers(json)?;
        }
        let encoded = tokens.document(&document)?;
        if is_chat {
            self.chats += 1;
        }
        self.without_end += usize::from(!tokens.has_end(&encoded));
        self.crossing += usize::from(encoded.crosses);
        self.entries.push(encoded);
        Ok(())
    }
}

/// Returns an error for an integer in chats that has more than 64 bits, which a template would receive as a rounded float.
fn check_integers(json: &str) -> Result<()> {
    // Every second part is in quotes. An escaped quote is not the end of a text.
    let json = json.replace("\\\\", "").replace("\\\"", "");
    let outside = json.split('"').step_by(2);
    let is_end = |c: char| !c.is_ascii_digit() && !"+-.eE".contains(c);
    for number in outside.flat_map(|part| part.split(is_end)) {
        let is_integer =
            number.bytes().any(|it| it.is_ascii_digit()) && !number.contains(['.', 'e', 'E']);
        ensure!(
            !is_integer || number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok(),
            "the integer {number} has more than 64 bits: write it as a text, in quotes"
        );
    }
    Ok(())
}

fn open(path: &Path) -> Result<std::fs::File> {
    std::fs::File::open(path).with_context(|| format!("{} can't be read", path.display()))
}

fn read(path: &Path) -> Result<String> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("{name} can't be read"))?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.split(|byte| *byte == b'\n').count();
        anyhow!("{name}:{line}: the text is not UTF-8: convert the file")
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(text)
}
