//! Rows of the data to train on, and those held out.

use anyhow::{Result, ensure};

use crate::config::DecoderConfig;
use crate::documents::Documents;
use crate::evaluation;
use crate::held_out;
use crate::options::Options;
use crate::print::{self, say};
use crate::rows::{Rows, divide};
use crate::tokens::{Encoded, Tokens};

/// The data of a training.
#[derive(Debug)]
pub struct Data {
    pub rows: Rows,
    pub held_out: Rows,
    /// `true` if all documents are chats.
    pub is_chats: bool,
}

impl Data {
    /// Reads the files of `--data` and `--validation`.
    ///
    /// # Errors
    ///
    /// If there is nothing to train on.
    pub fn read(options: &Options, config: &DecoderConfig, tokens: &Tokens) -> Result<Self> {
        let length = options.length(config);
        let documents = Documents::read(&options.data, tokens)?;
        let is_chats = documents.chats == documents.len();
        let mut count = documents.len();
        documents.warn();
        let all = documents.into_rows(length, options.pad);
        let (trained, held_out) = match options.validation.as_slice() {
            [] => held_out::split(all, options.held_out, options.seed),
            files => {
                let documents = Documents::read(files, tokens)?;
                count += documents.len();
                documents.warn();
                (all, documents.into_rows(length, options.pad))
            }
        };
        let (rows, long) = rows_of(trained, length, options.pad);
        let (held_out, long_held_out) = rows_of(held_out, length, options.pad);
        let long = long + long_held_out;
        if long > 0 {
            let documents = print::count(long, "document");
            match options.pad {
                true => say!(
                    "{documents} cut off after {length} tokens, and left out if none counts before: raise `--length` for more"
                ),
                false => say!(
                    "warning: {documents} with an answer after the first {length} tokens: it is trained without the text before. \
                     Raise `--length`, or cut documents off with `--pad`"
                ),
            }
        }
        ensure!(
            !rows.is_empty() || long == 0 || !options.pad,
            "no document has a token that counts in its first {length} tokens: raise `--length`"
        );
        ensure!(
            !rows.is_empty(),
            "the data has no token that counts: it is too short. Add longer texts, or answers"
        );
        ensure!(
            options.validation.is_empty() || !held_out.is_empty(),
            "`--validation` has no token that counts: name a longer file"
        );
        say!(
            "{} in {} of {length} tokens, {} of them held out{}",
            print::count(count, "document"),
            print::count(rows.len() + held_out.len(), "row"),
            held_out.len(),
            match held_out.len() > evaluation::ROWS {
                true => format!(", of which {} are evaluated", evaluation::ROWS),
                false => String::new(),
            }
        );
        Ok(Self {
            rows,
            held_out,
            is_chats,
        })
    }
}

impl Documents {
    /// Warns of documents from which the model learns something else than intended.
    fn warn(&self) {
        if self.without_end > 0 {
            say!(
                "warning: in {} no token that ends a text counts, so the model does not learn where a text ends: set `eos_token` in \
                 tokenizer_config.json, and `eos_token_id` in config.json and generation_config.json, to the token at the end of texts",
                print::count(self.without_end, "document")
            );
        }
        if self.crossing > 0 {
            say!(
                "warning: in {} a token begins in the prompt and ends in the answer, and it counts: end the prompt without a \
                 blank, and begin the answer with it",
                print::count(self.crossing, "document")
            );
        }
    }

    /// Returns all documents; without `pad`, texts in parts of a row, which are held out one by one.
    fn into_rows(self, length: usize, pad: bool) -> Vec<Encoded> {
        let mut all = self.entries;
        match pad {
            false => all.extend(self.texts.into_iter().flat_map(|it| divide(it, length))),
            true => all.extend(self.texts),
        }
        all
    }
}

/// Returns rows, and how many documents are cut off; without `pad`, how many have an answer after their first row.
fn rows_of(documents: Vec<Encoded>, length: usize, pad: bool) -> (Rows, usize) {
    match pad {
        true => Rows::padded(documents, length),
        false => {
            let has_answer_later = |it: &&Encoded| {
                let later = it.counted.get(length + 1..).unwrap_or_default();
                it.counted.contains(&false) && later.contains(&true)
            };
            let long = documents.iter().filter(has_answer_later).count();
            (Rows::packed(documents, length), long)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_after_first_row_are_counted_but_not_texts() {
        let document = |tokens: usize, prompt: usize| Encoded {
            tokens: vec![1; tokens],
            counted: (0..tokens).map(|token| token >= prompt).collect(),
            crosses: false,
        };
        let answered = Encoded {
            counted: (0..20).map(|token| token == 3).collect(),
            ..document(20, 20)
        };
        let documents = vec![document(20, 4), document(9, 4), document(30, 0), answered];
        for (pad, expected) in [(false, 1), (true, 3)] {
            assert_eq!(rows_of(documents.clone(), 8, pad).1, expected);
        }
    }
}
