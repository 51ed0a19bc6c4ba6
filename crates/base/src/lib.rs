#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without flex there is no host that has all types.
#![cfg_attr(not(feature = "flex"), allow(unused))]

mod any;
pub mod caught;
mod key;
mod list;
mod read;
mod servers;
mod transfer;

use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

pub use any::{AnyParam, AnyTensor, MAX_RANK};
pub use key::ModelKey;
pub use list::{Parameter, list, values, weight_of_codes, with_value};
pub use read::{in_memory, moved, of_data, read};
pub use servers::{answered, answers, forked, is_remote, sent};
pub use transfer::{in_type, transferred};

/// Whether `device` is one of CubeCL's: it computes on a thread of its own, and what has to be known of a result
/// has to be waited for.
pub fn is_cubecl(device: &Device) -> bool {
    #[allow(unreachable_patterns, unused_variables)] // What is there depends on the build.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cubecl")]
        burn::backend::DispatchDevice::Cube(_) => true,
        _ => false,
    }
}

/// Lets `device` have what this thread has asked it for.
///
/// As long as `fusion` gathers operations, they hold their tensors, those that were dropped among them. And every thread
/// has a stream of its own on CubeCL devices: what one has uploaded and not handed over, another can read too early. What is
/// meant for a server waits for more to be sent with it.
pub fn hand_over(device: &Device) {
    if (is_cubecl(device) || is_remote(device))
        && let Err(error) = device.flush()
    {
        // Whoever reads a result is told what has failed.
        log::debug!("{device:?} has not taken all operations: {error}");
    }
}

/// The device of this process that has all types, or `device` if this build has none.
#[cfg(feature = "flex")]
pub fn host(_device: &Device) -> Device {
    Device::flex()
}

/// The same without a backend for all types.
#[cfg(not(feature = "flex"))]
pub fn host(device: &Device) -> Device {
    device.clone()
}

/// Associates `value` with autodiff under the given checkpointing strategy, untracked.
pub fn lift<const D: usize>(
    value: Tensor<D>,
    strategy: GradientCheckpointingStrategy,
) -> Tensor<D> {
    // `from_inner` alone gives the default strategy, and Burn refuses to mix strategies.
    Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy)
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
