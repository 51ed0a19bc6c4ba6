//! What several test programs share.

#![allow(dead_code)] // Each program uses a part.

pub mod compare;
pub mod contents;
pub mod in_types_of;
pub mod noting;
pub mod ok;
pub mod panics;

#[allow(unused_imports)]
pub use {compare::*, contents::*, in_types_of::*, noting::*, ok::*, panics::*};
