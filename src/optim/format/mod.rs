//! Weights and optimizer states in fewer bits than f32 has.
//!
//! An update is computed in f32: a format reads a group of elements into f32 before, and writes it after, so there is
//! never a buffer of a parameter's size.

mod formats;
mod low_bits;
mod low_slice;
mod noise;
mod record;
mod root;
mod state;
mod state_record;
mod weight;

pub(crate) use formats::{Formats, Weight};
pub(crate) use low_bits::LowBits;
pub(crate) use low_slice::LowSlice;
pub(crate) use noise::{Noise, threshold};
pub(crate) use record::{RecordedFormat, around, loaded, recorded_low_bits, steps};
pub(crate) use root::{Coding, GROUP, Root, Values};
pub use state::StateFormat;
pub(crate) use state::{PackedState, StateTensor};
pub use weight::WeightFormat;
pub(crate) use weight::{nearest, stochastic};
