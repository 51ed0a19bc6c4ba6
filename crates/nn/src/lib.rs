#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// A library may build without any backend.
#![cfg_attr(
    not(any(
        feature = "cubecl",
        feature = "flex",
        feature = "ndarray",
        feature = "remote"
    )),
    allow(unused)
)]

mod adapter;
mod attention;
mod elements;
mod embedding;
mod gated;
mod linear;
mod linear_cross_entropy;
mod node;
mod norm;
mod product;
mod simd;

pub use attention::{AttentionOptions, attention};
pub use embedding::embedding;
pub use gated::{geglu, swiglu};
pub use linear::linear;
pub use linear_cross_entropy::{LinearCrossEntropyOptions, linear_cross_entropy};
pub use norm::{layer_norm, rms_norm};

/// Panics if the shape of an argument is not the one that `other` arguments require.
#[track_caller]
fn check_shape<T: PartialEq + std::fmt::Debug>(name: &str, shape: T, expected: T, other: &str) {
    assert!(
        shape == expected,
        "the shape of {name} is {shape:?}: with {other} it must be {expected:?}"
    );
}
