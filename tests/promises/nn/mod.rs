//! Operations with a backward pass of their own.

mod linear_cross_entropy;
mod operations;
