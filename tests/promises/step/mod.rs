//! A step, and the backward pass in it.

mod backward;
mod threads;
mod trace;
