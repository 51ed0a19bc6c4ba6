//! Rows of the data to train on, and those held out.

use anyhow::{Result, ensure};

use crate::config::DecoderConfig;
use crate::documents::Documents;
use crate::held_out;
use crate::options::Options;
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
    /// Reads the files of `--data`.
    ///
    /// # Errors
    ///
    /// If there is nothing to train on.
    pub fn read(options: &Options, config: &DecoderConfig, tokens: &Tokens) -> Result<Self> {
        let documents = Documents::read(&options.data, tokens)?;
        let length = options.length(config);
        let count = documents.len();
        let is_chats = documents.chats == count;
        if documents.without_end > 0 {
            println!(
                "warning: {} chats have no special token among those that count: the model does not learn where an answer ends",
                documents.without_end
            );
        }
        let mut all = documents.entries;
        match options.pad {
            // The rows of a text are held out one by one.
            false => all.extend(
                documents
                    .texts
                    .into_iter()
                    .flat_map(|it| divide(it, length)),
            ),
            true => all.extend(documents.texts),
        }
        let (trained, held_out) = held_out::split(all, options.held_out, options.seed);
        let rows = |documents: Vec<Encoded>| match options.pad {
            true => Rows::padded(documents, length),
            false => (Rows::packed(documents, length), 0),
        };
        let ((rows, cut), (held_out, cut_held_out)) = (rows(trained), rows(held_out));
        let cut = cut + cut_held_out;
        if cut > 0 {
            println!(
                "{cut} documents are cut off after {length} tokens: raise `--length` for more"
            );
        }
        ensure!(
            !rows.is_empty() || cut == 0,
            "no document has a token that counts in its first {length} tokens: raise `--length`"
        );
        ensure!(
            !rows.is_empty(),
            "the data has no token that counts: it is too short"
        );
        println!(
            "{count} documents in {} rows of {length} tokens, {} of them held out",
            rows.len() + held_out.len(),
            held_out.len()
        );
        Ok(Self {
            rows,
            held_out,
            is_chats,
        })
    }
}
