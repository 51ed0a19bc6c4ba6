//! Devices of Burn's remote servers.

use burn::module::Module;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};

use super::{caught, host};
use crate::error::FusedError;

/// Refuses devices whose server does not answer any more. What is asked of such a device is sent on its way, and nobody
/// says that it has not arrived; so it is waited for. Other devices are not.
pub(crate) fn check_connected(devices: impl FnOnce() -> Vec<Device>) -> Result<(), FusedError> {
    if cfg!(not(feature = "remote")) {
        return Ok(());
    }
    let devices = devices();
    let mut remote = devices.iter().filter(|device| is_remote(device));
    remote.try_for_each(|device| {
        let answer = caught(|| device.clone().inner().sync());
        let answer = answer.and_then(|answer| answer.map_err(|error| error.to_string()));
        answer.map_err(|reason| FusedError::DeviceLost {
            device: format!("{device:?}"),
            reason,
        })
    })
}

/// Whether `device` is one of a server's.
pub(crate) fn is_remote(device: &Device) -> bool {
    #[allow(unreachable_patterns, unused_variables)] // What is there depends on the build.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "remote")]
        burn::backend::DispatchDevice::Remote(_) => true,
        _ => false,
    }
}

/// Whether Burn would have one server ask another for a tensor, or one device of a server another.
///
/// What we move goes through this process instead: a server waits for ever if the other is gone, or has the tensor ready just
/// when it is asked for it (`ExternalCommService` of Burn 0.22.1 looks, and listens for news only then). And it need not
/// know under what address the other is reached from there. Two devices of one server can't be told from those of two.
fn between_servers(from: &Device, to: &Device) -> bool {
    is_remote(from) && is_remote(to) && from.clone().inner() != to.clone().inner()
}

/// [`Tensor::to_device`], but from one server to another through this process. What is there is the same tensor.
pub(crate) fn sent<const D: usize, K: Basic>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    let from = tensor.device();
    if from == *device {
        return tensor;
    }
    match between_servers(&from, device) {
        true => tensor.to_device(&host(device)).to_device(device),
        false => tensor.to_device(device),
    }
}

/// [`Module::fork`], but what is on another server than `device` goes through this process.
pub(crate) fn forked<M: Module>(module: M, device: &Device) -> M {
    let devices = module.devices();
    match devices.iter().any(|from| between_servers(from, device)) {
        // As a whole, since Burn's mappers don't see constants.
        true => module.fork(&host(device)).fork(device),
        false => module.fork(device),
    }
}
