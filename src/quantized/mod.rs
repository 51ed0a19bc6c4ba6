//! Adapters on a frozen weight that is stored in a few bits.
//!
//! The weight of a layer is the dequantized base plus the adapter. It is an autodiff operation that the tape
//! rematerializes when it needs the weight ([`rematerialized`]). So the dense weight exists for one layer at a time,
//! and its gradient until those of the factors are computed. Quantized values ([`values`]) are rows of bytes, one for a
//! group of 64 weights, in Burn's tensor kind for bytes among float parameters. So all code that moves or records
//! quantized parameters works with them. They are a parameter of the adapter ([`stored`]). The parameter that has the
//! adapter is a [`shape_stub`]: a tensor of the weight's shape without its values.

mod adapter;
#[cfg(feature = "store")]
mod base;
mod dequantized;
mod format;
mod lora;
mod rematerialized;
mod shape_stub;
mod stored;
mod values;
mod weight;

pub use adapter::QuantizedAdapter;
pub(crate) use adapter::{is_factor, weight_of_values};
#[cfg(feature = "store")]
pub(crate) use base::AdaptedBase;
pub use format::BaseFormat;
pub use lora::QuantizedLora;
pub(crate) use shape_stub::{is_expanded, is_shape_stub, moved};
