//! The tokenizer of a model.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value as Json;
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token, Tokenizer};

use crate::chat::Template;
use crate::config::DecoderConfig;

/// Turns texts and chats into tokens.
pub struct Tokens {
    /// Without a post-processor: one that trims offsets would take blanks out of answers.
    tokenizer: Tokenizer,
    /// Special tokens that the post-processor writes before and after a text.
    around: [Vec<u32>; 2],
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
    /// Reads `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` in `folder`. Truncation and padding in the first
    /// have no effect, as in `transformers`.
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
        let failed = |error| anyhow!("{}: {error}", file.display());
        let mut tokenizer = Tokenizer::from_file(&file).map_err(failed)?;
        let around = around(tokenizer.get_post_processor()).map_err(failed)?;
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);
        let last = tokenizer.get_vocab(true).into_values().max().unwrap_or(0) as usize;
        ensure!(
            last < model.vocabulary,
            "{} has the token {last}, and the model has {} tokens: use the tokenizer of the model",
            file.display(),
            model.vocabulary
        );
        let config = json(&folder.join("tokenizer_config.json"))?;
        let special = special(&config, &json(&folder.join("special_tokens_map.json"))?);
        let end = special.get("eos_token");
        let end = end.and_then(|text| tokenizer.token_to_id(text));
        Ok(Self {
            template: Template::read(folder, &config, special)?,
            end: end.or(model.end_of_text),
            around,
            tokenizer,
        })
    }

    /// Returns the tokens of a text as the model sees it, without an end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding =
            encoding.map_err(|error| anyhow!("the text can't be cut into tokens: {error}"))?;
        let [before, after] = &self.around;
        Ok([before, encoding.get_ids(), after].concat())
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

/// Returns the tokens that `processor` writes before and after a text.
fn around(processor: Option<&PostProcessorWrapper>) -> tokenizers::Result<[Vec<u32>; 2]> {
    let Some(processor) = processor else {
        return Ok([Vec::new(), Vec::new()]);
    };
    let text = Token::new(u32::MAX, "x".to_owned(), (0, 1));
    let encoding = processor.process(Encoding::from_tokens(vec![text], 0), None, true)?;
    let mut parts = encoding.get_ids().split(|id| *id == u32::MAX);
    Ok([(); 2].map(|()| parts.next().unwrap_or_default().to_vec()))
}

/// Returns the JSON in `file`, or `null` if there is none.
fn json(file: &Path) -> Result<Json> {
    match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| file.display().to_string()),
        Err(_) => Ok(Json::Null),
    }
}

/// Returns the texts of the special tokens that templates use. `map` replaces those in `config`, unless `config` is of a version of
/// `transformers` that lists all added tokens in it.
fn special(config: &Json, map: &Json) -> BTreeMap<String, String> {
    let is_complete = config.get("added_tokens_decoder").is_some();
    let map = map.as_object().filter(|_| !is_complete);
    let names = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];
    let texts = names.into_iter().filter_map(|name| {
        let name = format!("{name}_token");
        let token = map.and_then(|map| map.get(&name));
        let token = token.unwrap_or(&config[&name]);
        let text = token.as_str().or(token["content"].as_str())?;
        Some((name, text.to_owned()))
    });
    texts.collect()
}
