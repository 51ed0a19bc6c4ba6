//! Fine-tunes a language model from the files of Hugging Face's `transformers`, and writes it back.

#![warn(clippy::print_stdout)]

pub mod adapters;
mod answers;
mod attention;
#[path = "../../shared/backend.rs"]
mod backend;
mod card;
mod chat;
mod checksum;
pub mod config;
mod config_fields;
mod conversion;
mod counts;
pub mod data;
mod date;
pub mod decoder;
mod documents;
mod dry_run;
mod evaluation;
mod extent;
mod first_adapters;
mod header;
mod held_out;
mod line;
mod log;
mod losses;
mod message;
mod method;
pub mod model_files;
mod names;
mod optimizer;
mod option_checks;
pub mod options;
pub mod output;
mod packed;
mod peaks;
mod pieces;
mod planning;
mod print;
mod result;
mod room;
mod rope;
mod rounding;
pub mod rows;
pub mod run;
mod sample;
mod save_every;
mod saved;
pub mod schedule;
pub mod signals;
pub mod step;
mod tensor_file;
pub mod tokens;
mod train;
mod trained;
pub mod weights;
