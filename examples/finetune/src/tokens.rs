//! The tokenizer of a model.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::slice;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value as Json, json};
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token, Tokenizer};

use crate::added_tokens;
use crate::chat::Template;
use crate::config::DecoderConfig;
use crate::line::Document;
use crate::message::Chat;
use crate::pieces;

/// Turns texts and chats into tokens.
pub struct Tokens {
    /// Without a post-processor: one that trims offsets would take blanks out of answers.
    tokenizer: Tokenizer,
    /// Special tokens that the post-processor writes before and after a text.
    around: [Vec<u32>; 2],
    template: Option<Template>,
    end: Option<u32>,
    /// Tokens at which the model ends a text.
    ends: Vec<u32>,
    /// Number of tokens that the model has embeddings of.
    vocabulary: usize,
}

/// A document as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    pub tokens: Vec<u32>,
    /// `true` for each token that counts as a target.
    pub counted: Vec<bool>,
    /// `true` if a token that counts begins in the prompt.
    pub crosses: bool,
}

impl Encoded {
    /// Returns `true` if a token after the first counts.
    pub fn has_target(&self) -> bool {
        self.counted.iter().skip(1).any(|counted| *counted)
    }
}

impl Tokens {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` in `folder`. Truncation and padding in the first
    /// have no effect, as in `transformers`.
    pub fn read(folder: &Path, model: &DecoderConfig) -> Result<Self> {
        let file = folder.join("tokenizer.json");
        ensure!(
            file.exists(),
            "{} is missing: load the tokenizer with `AutoTokenizer` of transformers and write it with `save_pretrained`",
            file.display()
        );
        let failed = |error| anyhow!("{}: {error}", file.display());
        let mut tokenizer = Tokenizer::from_file(&file).map_err(failed)?;
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let texts = special(
            &config,
            &read_json(&folder.join("special_tokens_map.json"))?,
        );
        let around = around(tokenizer.get_post_processor()).map_err(failed)?;
        let beyond = around
            .iter()
            .flatten()
            .find(|token| **token as usize >= model.vocabulary);
        ensure!(
            beyond.is_none(),
            "{} writes the token {} around texts, and the model has {} tokens: use the tokenizer of the model",
            file.display(),
            beyond.copied().unwrap_or_default(),
            model.vocabulary
        );
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);
        added_tokens::check(&tokenizer, &config)?;
        let generation = read_json(&folder.join("generation_config.json"))?;
        let ends = match &generation["eos_token_id"] {
            Json::Array(ids) => ids.as_slice(),
            id => slice::from_ref(id),
        };
        let ends = ends.iter().filter_map(Json::as_u64);
        let ends = ends.filter_map(|id| u32::try_from(id).ok());
        let end = texts.get("eos_token");
        let end = end.and_then(|text| tokenizer.token_to_id(text));
        let end = end.or(model.end_of_text.first().copied());
        ensure!(
            end.is_none_or(|end| (end as usize) < model.vocabulary),
            "`eos_token_id` is {}, and the model has {} tokens: set one of them, or `eos_token` in tokenizer_config.json",
            end.unwrap_or_default(),
            model.vocabulary
        );
        Ok(Self {
            template: Template::read(folder, &config, texts)?,
            end,
            ends: ends
                .chain(model.end_of_text.iter().copied())
                .chain(end)
                .collect(),
            vocabulary: model.vocabulary,
            around,
            tokenizer,
        })
    }

    /// Returns the tokens of a text as the model sees it, without an end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = pieces::encode(&self.tokenizer, text)?;
        self.check(&tokens)?;
        let [before, after] = &self.around;
        Ok([before, tokens.as_slice(), after].concat())
    }

    /// Returns an error for a token that the model has no embedding of, such as one for padding that was added to the tokenizer.
    fn check(&self, tokens: &[u32]) -> Result<()> {
        let beyond = tokens
            .iter()
            .find(|token| **token as usize >= self.vocabulary);
        let Some(token) = beyond else {
            return Ok(());
        };
        bail!(
            "the text has the token {token} ({:?}), and the model has {} tokens: remove it from the data, or use the tokenizer of \
            the model",
            self.tokenizer.id_to_token(*token).unwrap_or_default(),
            self.vocabulary
        )
    }

    /// Returns a document: all tokens of a text and the end of the text count.
    pub fn text(&self, text: &str) -> Result<Encoded> {
        let mut tokens = self.encode(text)?;
        if let Some(end) = self.end.filter(|end| tokens.last() != Some(end)) {
            tokens.push(end);
        }
        let counted = vec![true; tokens.len()];
        Ok(Encoded {
            tokens,
            counted,
            crosses: false,
        })
    }

    /// Returns a document of the data.
    pub fn document(&self, document: &Document) -> Result<Encoded> {
        match document {
            Document::Text(text) => self.text(text),
            Document::Completion(prompt, completion) => self.completion(prompt, completion),
            Document::Chat(chat) => self.rendered(chat),
        }
    }

    /// Returns two texts as one document: the tokens of the second and the end of the text count.
    fn completion(&self, prompt: &str, completion: &str) -> Result<Encoded> {
        let text = format!("{prompt}{completion}");
        let counted = prompt.len()..text.len();
        let mut document = self.marked(&text, slice::from_ref(&counted))?;
        let [before, after] = &self.around;
        document.tokens.splice(..0, before.iter().copied());
        document.counted.splice(..0, before.iter().map(|_| false));
        document.tokens.extend(after);
        let end = self.end.filter(|end| document.tokens.last() != Some(end));
        document.tokens.extend(end);
        document.counted.resize(document.tokens.len(), true);
        Ok(document)
    }

    /// Returns a chat of `messages` as a line of the data has them: the tokens of answers count.
    pub fn chat(&self, messages: &[Json]) -> Result<Encoded> {
        self.rendered(&Chat::new(messages, &Json::Null)?)
    }

    /// Returns a chat through the template of the tokenizer.
    fn rendered(&self, chat: &Chat) -> Result<Encoded> {
        let (text, answers) = self.template()?.answers(chat)?;
        self.marked(&text, &answers)
    }

    /// Returns the text of `--prompt`: in a model of chats it is a question, which the beginning of the answer follows.
    pub fn prompt(&self, text: &str, is_chat: bool) -> Result<Vec<u32>> {
        let tokens = match is_chat {
            true => {
                let message = json!({"role": "user", "content": text});
                let text = self.template()?.render(&[message], &Json::Null, true)?;
                self.marked(&text, &[])?.tokens
            }
            false => self.encode(text)?,
        };
        ensure!(
            !tokens.is_empty(),
            "`--prompt` has no token: write a text, or leave the option out"
        );
        Ok(tokens)
    }

    fn template(&self) -> Result<&Template> {
        self.template.as_ref().context(
            "the tokenizer has no chat template: add `chat_template.jinja` to the model's folder, or use `text`",
        )
    }

    /// Returns a text that has all its special tokens; the tokens that have a byte in `ranges` count.
    fn marked(&self, text: &str, ranges: &[Range<usize>]) -> Result<Encoded> {
        let encoding = self.tokenizer.encode(text, false);
        let encoding =
            encoding.map_err(|error| anyhow!("the text can't be cut into tokens: {error}"))?;
        let is_in = |&(start, end): &(usize, usize)| {
            let overlaps = |range: &Range<usize>| start < range.end && end > range.start;
            start < end && ranges.iter().any(overlaps)
        };
        let crosses = |&(start, end): &(usize, usize)| {
            let within = |range: &Range<usize>| start < range.start && end > range.start;
            ranges.iter().any(within)
        };
        self.check(encoding.get_ids())?;
        let offsets = encoding.get_offsets();
        Ok(Encoded {
            tokens: encoding.get_ids().to_vec(),
            counted: offsets.iter().map(is_in).collect(),
            crosses: offsets.iter().any(crosses),
        })
    }

    /// Returns `true` if a token that ends a text counts, so that the model learns where a text ends.
    pub fn has_end(&self, document: &Encoded) -> bool {
        let mut tokens = document.tokens.iter().zip(&document.counted);
        tokens.any(|(token, counted)| *counted && self.is_end(*token))
    }

    /// Returns the text of `tokens`, without the special ones.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = self.tokenizer.decode(tokens, true);
        text.map_err(|error| anyhow!("the tokens have no text: {error}"))
    }

    /// Returns the text of `tokens`, with the special ones.
    pub fn decode_all(&self, tokens: &[u32]) -> Result<String> {
        let text = self.tokenizer.decode(tokens, false);
        text.map_err(|error| anyhow!("the tokens have no text: {error}"))
    }

    /// Returns `true` if the model ends a text with this token.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
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
fn read_json(file: &Path) -> Result<Json> {
    match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Json::Null),
        Err(error) => Err(error).with_context(|| format!("{} can't be read", file.display())),
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
