//! Tokenization of text.

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tiktoken_rs::r50k_base_singleton;

/// Tokens of a text.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Bytes, 256 of them.
    Bytes,
    /// The 50,257 pieces of GPT-2.
    Gpt2,
}

impl Vocabulary {
    /// Returns the number of tokens in the vocabulary.
    pub fn size(self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::Gpt2 => 50_257,
        }
    }

    pub fn encode(self, text: &str) -> Vec<u32> {
        match self {
            Self::Bytes => text.bytes().map(u32::from).collect(),
            Self::Gpt2 => r50k_base_singleton().encode_ordinary(text),
        }
    }

    /// Returns the text of `tokens`; invalid text is replaced by a replacement character.
    pub fn decode(self, tokens: &[u32]) -> Result<String> {
        let bytes = match self {
            Self::Bytes => tokens
                .iter()
                .map(|token| Ok(u8::try_from(*token)?))
                .collect(),
            Self::Gpt2 => r50k_base_singleton()
                .decode_bytes(tokens)
                .map_err(|error| anyhow!("these are not tokens of GPT-2: {error}")),
        };
        Ok(String::from_utf8_lossy(&bytes?).into_owned())
    }
}
