use backburn_base::{is_remote, sync_with_timeout};
use burn::tensor::Device;

use crate::error::FusedError;

/// Returns an error if the server of one of the `devices` has not run all operations, or doesn't answer in time.
/// Nothing else reports a lost operation.
pub(crate) fn check_connected(devices: &[Device]) -> Result<(), FusedError> {
    let mut remote = devices.iter().filter(|device| is_remote(device));
    remote.try_for_each(|device| {
        sync_with_timeout(&device.clone().inner()).map_err(|reason| FusedError::DeviceLost {
            device: format!("{device:?}"),
            reason,
        })
    })
}
