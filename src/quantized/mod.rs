//! Adapters on a frozen weight that rests in codes of a few bits.
//!
//! The weight that a layer computes with, the decoded one and what the adapter adds, is an operation of autodiff that the
//! tape makes again where it needs it ([`remade`]): so it lives for one layer at a time, and its gradient until those of the
//! factors are made of it. Codes ([`codes`]) are rows of bytes, one for a group of 64 weights, in the kind of tensor that Burn has for
//! bytes among float parameters: so all that moves or records quantized parameters does so with these. They are a parameter of the
//! adapter ([`stored`]); the parameter that carries the adapter is a [`placeholder`] of the weight's shape.

mod adapter;
#[cfg(feature = "store")]
mod base;
mod codes;
mod device;
mod format;
mod lora;
mod placeholder;
mod remade;
mod stored;
mod weight;

pub use adapter::QuantizedAdapter;
#[cfg(feature = "store")]
pub(crate) use base::AdaptedBase;
pub use format::BaseFormat;
pub use lora::QuantizedLora;
pub(crate) use placeholder::{is_placeholder, moved};
