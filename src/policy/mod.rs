//! What happens to a finished gradient.

mod clip;
mod norm;
mod update;

pub use clip::GlobalNormClipping;
pub(crate) use norm::{norm, scaled, squares, squares_of};
pub(crate) use update::Update;
