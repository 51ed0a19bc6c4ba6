//! Fine-tunes a language model from the files of Hugging Face's `transformers`, and writes it back.

pub mod adapters;
mod answers;
mod attention;
#[path = "../../shared/backend.rs"]
mod backend;
mod chat;
pub mod config;
pub mod data;
mod date;
pub mod decoder;
mod documents;
mod dry_run;
mod held_out;
mod line;
mod message;
mod method;
pub mod options;
pub mod output;
mod packed;
mod pieces;
mod rope;
pub mod rows;
pub mod run;
mod sample;
mod saved;
pub mod schedule;
pub mod step;
pub mod tokens;
mod train;
pub mod weights;
