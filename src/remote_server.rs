//! This machine's devices for the trainings of others.

use burn::backend::DispatchDevice;
use burn::server::RemoteServer;
use burn::tensor::Device;

use crate::error::FusedError;
use crate::optim::kernel::{UPDATE, run_update};

/// A server of `devices`, which are of one backend, with the single-pass kernels of
/// [`backburn::optim`](crate::optim) on them: Burn's [`RemoteServer`], to be given an authorizer and to serve.
///
/// A client computes on them as on its own, `Device::remote_options(&host).init()`, and trains with
/// [`FusedOptimizer`](crate::FusedOptimizer) or [`FusedReplicas`](crate::FusedReplicas). Without this crate on the
/// server's side its optimizers can't step there, Burn's can.
///
/// # Errors
///
/// If there are no devices, or this build of the crate has no kernel for their backend.
pub fn remote_server(
    devices: impl IntoIterator<Item = Device>,
) -> Result<RemoteServer, FusedError> {
    let devices: Vec<Device> = devices.into_iter().map(Device::inner).collect();
    let Some(first) = devices.first().cloned() else {
        let reason = "there are no devices to serve: name one".to_string();
        return Err(FusedError::Replicas { reason });
    };
    let server = RemoteServer::new(devices);
    #[allow(unreachable_patterns)] // What is there depends on the build.
    match first.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => {
            use burn::backend::Flex;
            Ok(
                server.with_custom_op::<Flex, _>(UPDATE, |handles, operation, _| {
                    run_update::<Flex>(handles, operation);
                }),
            )
        }
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => {
            use burn::backend::Cube;
            Ok(
                server.with_custom_op::<Cube, _>(UPDATE, |handles, operation, _| {
                    run_update::<Cube>(handles, operation);
                }),
            )
        }
        _ => Err(FusedError::Replicas {
            reason: format!(
                "this build of backburn has no operations for {first:?}, which is to be served: enable the backburn \
                 feature of its backend (`flex`, `wgpu`, `cuda`, ..)"
            ),
        }),
    }
}
