//! Estimates, recordings and pictures of memory.

mod estimate;
mod pictures;
mod pools;
