//! Each operation beside Burn's composition: outputs and gradients, in each type and layout, on any number of threads.

#![cfg(feature = "flex")]

mod attention;
mod case;
mod embedding;
mod gated;
mod graph;
mod linear;
mod linear_cross_entropy;
mod norms;
mod panics;
mod precision;
mod quantized;
mod view;
