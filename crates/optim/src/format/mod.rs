//! Weights and optimizer states in fewer bits than f32 has.
//!
//! An update is computed in f32: a format reads a block of elements into f32 before, and writes it after, so there is
//! never a buffer of a parameter's size.

mod column;
mod formats;
mod low_bits;
mod noise;
mod record;
mod root;
mod split;
mod state;
mod told;
mod weight;
mod widen;

pub(crate) use column::{Column, Kept};
pub use formats::formats_may_refuse;
pub(crate) use formats::{Fitted, Formats, Weight};
pub use low_bits::LowBits;
pub(crate) use noise::{Dither, Noise};
pub use record::recorded_low_bits;
pub(crate) use record::{RecordedFormat, around, loaded, steps};
pub(crate) use root::{Coding, GROUP, Root};
pub use state::StateFormat;
pub(crate) use state::{PackedState, StateTensor};
pub use weight::WeightFormat;
pub(crate) use widen::Widen;
