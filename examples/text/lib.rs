//! Trains a language model (a mixture of experts) within a memory budget.

#[path = "../shared/backend.rs"]
pub mod backend;
pub mod bigram;
pub mod checkpoint;
pub mod fine_tune;
pub mod fit;
#[path = "../shared/formats.rs"]
pub mod formats;
pub mod model;
#[path = "../shared/offload.rs"]
pub mod offload;
pub mod optimizer;
pub mod options;
pub mod sample;
pub mod technique;
pub mod text;
pub mod tokens;
pub mod train;
pub mod trainer;
