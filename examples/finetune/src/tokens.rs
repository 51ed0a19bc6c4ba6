//! The tokenizer of a model.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value as Json;
use tokenizers::Tokenizer;

use crate::chat::Template;
use crate::config::DecoderConfig;

/// Turns texts and chats into tokens.
pub struct Tokens {
    tokenizer: Tokenizer,
    template: Option<Template>,
    end: Option<u32>,
}

/// A document as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    pub tokens: Vec<u32>,
    /// `true` for each token that counts as a target.
    pub counted: Vec<bool>,
}

impl Tokens {
    /// Reads `tokenizer.json` and `tokenizer_config.json` in `folder`.
    ///
    /// # Errors
    ///
    /// If it has a token that the model has no embedding of.
    pub fn read(folder: &Path, model: &DecoderConfig) -> Result<Self> {
        let file = folder.join("tokenizer.json");
        ensure!(
            file.exists(),
            "{} is missing: load the tokenizer with `AutoTokenizer` of transformers and write it with `save_pretrained`",
            file.display()
        );
        let tokenizer =
            Tokenizer::from_file(&file).map_err(|error| anyhow!("{}: {error}", file.display()))?;
        let last = tokenizer.get_vocab(true).into_values().max().unwrap_or(0) as usize;
        ensure!(
            last < model.vocabulary,
            "{} has the token {last}, and the model has {} tokens: use the tokenizer of the model",
            file.display(),
            model.vocabulary
        );
        let file = folder.join("tokenizer_config.json");
        let config: Json = match std::fs::read(&file) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?
            }
            Err(_) => Json::Null,
        };
        let special = special(&config);
        let end = special.get("eos_token");
        let end = end.and_then(|text| tokenizer.token_to_id(text));
        Ok(Self {
            template: Template::read(folder, &config, special)?,
            end: end.or(model.end_of_text),
            tokenizer,
        })
    }

    /// Returns the tokens of a text as the model sees it, without an end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, true);
        let encoding =
            encoding.map_err(|error| anyhow!("the text can't be cut into tokens: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns a document: all tokens of a text and the end of the text count.
    pub fn text(&self, text: &str) -> Result<Encoded> {
        let mut tokens = self.encode(text)?;
        if let Some(end) = self.end.filter(|end| tokens.last() != Some(end)) {
            tokens.push(end);
        }
        let counted = vec![true; tokens.len()];
        Ok(Encoded { tokens, counted })
    }

    /// Returns a chat through the template of the tokenizer: the tokens of answers count.
    pub fn chat(&self, messages: &[Json]) -> Result<Encoded> {
        let template = self.template.as_ref().context(
            "the tokenizer has no chat template: add `chat_template.jinja` to the model's folder, or use `text`",
        )?;
        let (text, answers) = template.answers(messages)?;
        ensure!(
            !answers.is_empty(),
            "no message has the role `assistant`, so nothing can be learned"
        );
        // The template has written the special tokens.
        let encoding = self.tokenizer.encode(text, false);
        let encoding =
            encoding.map_err(|error| anyhow!("the chat can't be cut into tokens: {error}"))?;
        let is_answer = |&(start, end): &(usize, usize)| {
            let within =
                |answer: &std::ops::Range<usize>| start >= answer.start && end <= answer.end;
            start < end && answers.iter().any(within)
        };
        Ok(Encoded {
            tokens: encoding.get_ids().to_vec(),
            counted: encoding.get_offsets().iter().map(is_answer).collect(),
        })
    }

    /// Returns the text of `tokens`, without the special ones.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = self.tokenizer.decode(tokens, true);
        text.map_err(|error| anyhow!("the tokens have no text: {error}"))
    }

    /// The token at the end of a text or answer.
    pub fn end(&self) -> Option<u32> {
        self.end
    }
}

/// Returns the texts of the special tokens that templates use.
fn special(config: &Json) -> BTreeMap<String, String> {
    let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
    let texts = names.into_iter().filter_map(|name| {
        let token = &config[name];
        let text = token.as_str().or(token["content"].as_str())?;
        Some((name.to_owned(), text.to_owned()))
    });
    texts.collect()
}
