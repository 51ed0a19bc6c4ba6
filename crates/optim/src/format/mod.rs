//! Formats of weights and optimizer states with fewer bits than f32.
//!
//! # Memory
//!
//! An update is computed in f32. A format decodes a block of elements to f32 and encodes it again, so no buffer of a
//! parameter's size is allocated.

mod config_enum;
mod element_buffer;
mod formats;
mod noise;
mod record;
mod residual;
mod split;
mod square_root_code;
mod state;
mod weight;
mod widen;

pub(crate) use element_buffer::{ElementBuffer, ElementEncoding};
pub use formats::formats_may_refuse;
pub(crate) use formats::{Formats, Weight};
pub(crate) use noise::{Dither, Noise};
pub use record::recorded_residual;
pub(crate) use record::{RecordedFormat, around, loaded, steps};
pub use residual::Residual;
pub(crate) use square_root_code::{CodeScheme, GROUP, SquareRootCode};
pub use state::StateFormat;
pub(crate) use state::{PackedState, StateTensor};
pub use weight::WeightFormat;
pub(crate) use widen::Widen;
