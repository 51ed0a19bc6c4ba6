//! Tokens of a long text, in pieces that take little memory.
//!
//! # Invariants
//!
//! Each piece overlaps the next, and the cut lies between tokens and words that both pieces have at the same place, so each pair
//! of neighbouring tokens is one that the tokenizer made of a text around them. A text without such a place is tokenized whole.

use anyhow::{Result, anyhow};
use tokenizers::Tokenizer;

/// Bytes of a piece.
const PIECE: usize = 1 << 16;

/// Bytes that a piece has in common with the next.
const OVERLAP: usize = 1 << 12;

/// Tokens on each side of a cut that are equal in both pieces.
const EQUAL: usize = 16;

/// A token, its first and last byte in the whole text, and `true` if it begins a word of the pre-tokenizer.
type Placed = (u32, usize, usize, bool);

/// Returns the tokens of `text`, without special tokens around them.
pub fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let tokens = match in_pieces(tokenizer, text, PIECE, OVERLAP)? {
        Some(tokens) => tokens,
        None => ids(&placed(tokenizer, text, 0, text.len())?),
    };
    Ok(tokens)
}

/// Returns `None` if two pieces have no tokens in common.
fn in_pieces(
    tokenizer: &Tokenizer,
    text: &str,
    piece: usize,
    overlap: usize,
) -> Result<Option<Vec<u32>>> {
    let mut end = text.floor_char_boundary(piece);
    let mut last = placed(tokenizer, text, 0, end)?;
    let mut tokens = Vec::new();
    while end < text.len() {
        let start = text.floor_char_boundary(end - overlap);
        end = text.floor_char_boundary(start + piece);
        let mut next = placed(tokenizer, text, start, end)?;
        let Some((of_last, of_next)) = cut(&last, &next) else {
            return Ok(None);
        };
        tokens.extend(ids(&last[..of_last]));
        next.drain(..of_next);
        last = next;
    }
    tokens.extend(ids(&last));
    Ok(Some(tokens))
}

fn placed(tokenizer: &Tokenizer, text: &str, start: usize, end: usize) -> Result<Vec<Placed>> {
    let encoding = tokenizer.encode(&text[start..end], false);
    let encoding =
        encoding.map_err(|error| anyhow!("the text can't be cut into tokens: {error}"))?;
    let words = encoding.get_word_ids();
    let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
    let tokens = tokens.enumerate().map(|(index, (id, (from, to)))| {
        let begins_word = index == 0 || words[index] != words[index - 1];
        (*id, start + from, start + to, begins_word)
    });
    Ok(tokens.collect())
}

fn ids(tokens: &[Placed]) -> Vec<u32> {
    tokens.iter().map(|(id, ..)| *id).collect()
}

/// Returns the number of tokens before the cut in both pieces.
fn cut(last: &[Placed], next: &[Placed]) -> Option<(usize, usize)> {
    let common = |window: &[Placed]| {
        let of_next = next.partition_point(|token| token.1 < window[0].1);
        next[of_next..].starts_with(window).then_some(of_next)
    };
    let start = last.partition_point(|token| token.1 < next.first().map_or(0, |token| token.1));
    let mut windows = last[start..].windows(2 * EQUAL).enumerate();
    windows.find_map(|(index, window)| {
        let of_next = common(window)?;
        Some((start + index + EQUAL, of_next + EQUAL))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use serde_json::{Value, json};

    use super::*;

    fn tokenizer(model: &str, change: impl FnOnce(&mut Value)) -> Tokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference");
        let text = std::fs::read(folder.join(model).join("tokenizer.json")).unwrap();
        let mut value: Value = serde_json::from_slice(&text).unwrap();
        value["post_processor"] = Value::Null;
        change(&mut value);
        value.to_string().parse().unwrap()
    }

    /// Words, code, blanks, numbers and special tokens.
    fn text(seed: u64) -> String {
        let parts = [
            "The model learns ",
            "to answer, ",
            "and ",
            "\n",
            "\n\n",
            "    ",
            "\t",
            "größer ",
            "👍",
            "1234567",
            "</s>",
            "e\u{301}",
            "aaaa",
            "('tokens')",
            "don't ",
            " ",
            ".\n/",
            "\r\n",
        ];
        let mut random = StdRng::seed_from_u64(seed);
        (0..2000)
            .map(|_| parts[random.random_range(0..parts.len())])
            .collect()
    }

    #[test]
    fn tokens_of_pieces_equal_those_of_whole_text() {
        let gpt4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let plain = |model| tokenizer(model, |_| {});
        let tokenizers = [
            plain("llama"),
            plain("llama-tied"),
            plain("mistral"),
            plain("qwen2"),
            plain("qwen3"),
            tokenizer("llama", |it| {
                let split = json!({"type": "Split", "pattern": {"Regex": gpt4}, "behavior": "Isolated", "invert": false});
                let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
                it["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
                it["normalizer"] = json!({"type": "NFC"});
            }),
            // Without words, and with a space before the text.
            tokenizer("mistral", |it| {
                it["pre_tokenizer"]["use_regex"] = json!(false);
                it["pre_tokenizer"]["add_prefix_space"] = json!(true);
            }),
        ];
        for (number, tokenizer) in tokenizers.iter().enumerate() {
            for seed in 0..10 {
                let text = text(seed);
                let whole = ids(&placed(tokenizer, &text, 0, text.len()).unwrap());
                let pieces = in_pieces(tokenizer, &text, 1500, 500).unwrap();
                assert_eq!(pieces, Some(whole), "tokenizer {number}, text {seed}");
            }
        }
    }

    #[test]
    fn pieces_without_equal_tokens_are_no_result() {
        // Words of seven letters begin where the piece begins.
        let tokenizer = tokenizer("llama", |it| {
            let words = json!({"type": "Split", "pattern": {"Regex": "[a-z]{7}"}, "behavior": "Isolated", "invert": false});
            it["pre_tokenizer"] = words;
        });
        let text = "in".repeat(2000);
        assert_eq!(in_pieces(&tokenizer, &text, 1500, 500).unwrap(), None);
    }
}
