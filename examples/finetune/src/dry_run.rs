//! The beginning of a training, without the training.

use anyhow::Result;

use crate::data::Data;
use crate::print::{count, say};
use crate::tokens::Tokens;

/// The number of rows to print.
const ROWS: usize = 3;

/// Prints the first rows, with the tokens that count in brackets, and the numbers of rows and tokens.
pub fn print(data: &Data, tokens: &Tokens) -> Result<()> {
    for index in 0..data.rows.len().min(ROWS) {
        let (row, counted) = data.rows.row(index);
        // The first token is not a target.
        let counted = [&[false][..], &counted[1..]].concat();
        say!("row {}: {}\n", index + 1, marked(tokens, row, &counted)?);
    }
    let targets = (0..data.rows.len()).flat_map(|row| &data.rows.row(row).1[1..]);
    say!(
        "{} to train on with {} tokens, of which {} count",
        count(data.rows.len(), "row"),
        data.rows.len() * data.rows.length(),
        targets.filter(|counts| **counts).count()
    );
    Ok(())
}

/// Returns the text of a row up to the last token that counts.
fn marked(tokens: &Tokens, row: &[u32], counted: &[bool]) -> Result<String> {
    let mut text = String::new();
    let mut start = 0;
    for run in counted.chunk_by(|one, other| one == other) {
        let end = start + run.len();
        if !run[0] && end == row.len() {
            break;
        }
        let part = tokens.decode_all(&row[start..end])?;
        text += &match run[0] {
            true => format!("[[{part}]]"),
            false => part,
        };
        start = end;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::DecoderConfig;

    #[test]
    fn counted_tokens_are_in_brackets() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/llama");
        let config = DecoderConfig::read(&folder).unwrap();
        let tokens = Tokens::read(&folder, &config).unwrap();
        let row = tokens.encode("abcd").unwrap();
        assert_eq!(row.len(), 4, "a token of two letters");
        let text = marked(&tokens, &row, &[false, true, false, false]).unwrap();
        assert_eq!(text, "<s>[[ab]]");
    }
}
