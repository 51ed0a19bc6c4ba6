//! A step, and the backward pass in it.

mod backward;
mod trace;
