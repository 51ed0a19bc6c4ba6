#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod any;
pub mod caught;
mod key;
mod list;
mod read;
mod servers;
mod transfer;
mod vectorized;

use burn::tensor::Device;

pub use any::{AnyParam, AnyTensor, MAX_DIMS, primitive};
pub use key::ModelKey;
pub use list::{Parameter, list, values, with_value};
pub use read::{copy_to_device, in_memory, of_data, read};
pub use servers::{is_remote, read_with_timeout, sync_with_timeout};
pub use transfer::{forked, in_type, lift, signed, to_device, transferred};
pub use vectorized::{Loop, vectorized};

/// Returns `true` for a device of CubeCL. It computes asynchronously, so reading a result waits.
pub fn is_cubecl(device: &Device) -> bool {
    #[allow(unreachable_patterns)] // The variants depend on the features.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cubecl")]
        burn::backend::DispatchDevice::Cube(_) => true,
        _ => false,
    }
}

/// Returns `true` for a device of a CPU backend in this process: `flex` or `ndarray`. It computes synchronously.
pub fn is_cpu_backend(device: &Device) -> bool {
    !is_cubecl(device) && !is_remote(device)
}

/// Returns `true` for a device of `flex`.
pub fn is_flex(device: &Device) -> bool {
    #[allow(unreachable_patterns)] // The variants depend on the features.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "flex")]
        burn::backend::DispatchDevice::Flex(_) => true,
        _ => false,
    }
}

/// Flushes the operations of this thread to `device`.
///
/// Pending operations of `fusion` hold their tensors, also dropped ones. On CubeCL devices every thread has its own stream:
/// another thread could read an upload too early that was not flushed. A client of a server batches operations. Other devices
/// have nothing to flush.
pub fn flush(device: &Device) {
    if let Err(error) = device.flush() {
        // The read of a result reports the error.
        log::debug!("the operations of {device:?} could not be flushed: {error}");
    }
}

/// Returns the device of this process that supports all types, or `device` if this build has none.
#[cfg(feature = "flex")]
pub fn host(_device: &Device) -> Device {
    Device::flex()
}

/// Returns `device`: this build has no backend that supports all types.
#[cfg(not(feature = "flex"))]
pub fn host(device: &Device) -> Device {
    device.clone()
}

/// Defines a config whose fields all have a default, with the methods that Burn's derive generates. Burn's derive ignores an unknown
/// field and refuses a missing one; here a load refuses an unknown field by name, and a missing one has its default.
#[doc(hidden)]
#[macro_export]
macro_rules! config_struct {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$doc:meta])* pub $field:ident ($with:ident): $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $name {
            /// Creates the config with the default of each field.
            pub fn new() -> Self {
                Self { $($field: $default,)* }
            }

            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                ///
                #[doc = concat!("The default is `", stringify!($default), "`.")]
                pub fn $with(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl burn::config::Config for $name {}

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&burn::config::config_to_json(self))
            }
        }
    };
}

/// Implements `Debug` by `Display`: `unwrap` and a `main` that returns the error then print the message.
#[macro_export]
macro_rules! debug_prints_message {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
