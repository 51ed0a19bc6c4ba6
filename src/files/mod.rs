//! Weights from files and records, and the float type in which they are stored.

mod cast;
#[cfg(feature = "store")]
mod load_store;
mod loading;
#[cfg(feature = "store")]
mod weight_names;

pub use cast::cast;
pub(crate) use cast::leaf;
#[cfg(feature = "store")]
pub use load_store::{LoadError, load_from_store, load_quantized_from_store};
pub(crate) use loading::load_same;
#[cfg(feature = "store")]
pub use weight_names::WeightNames;
