#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without `flex`, code for `flex` is unused.
#![cfg_attr(not(feature = "flex"), allow(unused))]

mod attention;
mod elements;
mod gated;
mod layer_norm;
mod linear_cross_entropy;
mod node;
mod product;
mod rms_norm;
mod rotary;
mod simd;
mod whole;

pub use attention::{AttentionOptions, attention};
pub use gated::{geglu, swiglu};
pub use layer_norm::layer_norm;
pub use linear_cross_entropy::{LinearCrossEntropyOptions, linear_cross_entropy};
pub use rms_norm::rms_norm;
pub use rotary::rotary;
