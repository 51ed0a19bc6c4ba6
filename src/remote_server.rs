//! This machine's devices for the trainings of others.

use std::mem::discriminant;

use burn::backend::DispatchDevice;
use burn::server::RemoteServer;
use burn::tensor::{Device, FloatDType};
use burn_ir::BackendIr;

use crate::device::check_device;
use crate::error::FusedError;
use crate::optim::kernel::{SinglePass, UPDATE, run_update};

/// A server of `devices`, which are of one backend, with the single-pass kernels of
/// [`backburn::optim`](crate::optim) on them: Burn's [`RemoteServer`], to be given an authorizer and to serve.
///
/// A client computes on them as on its own, `Device::remote_options(&host).init()`, and trains with
/// [`FusedOptimizer`](crate::FusedOptimizer) or [`FusedReplicas`](crate::FusedReplicas). On a server without this crate
/// only Burn's own optimizers can step.
///
/// ```no_run
/// use burn::server::{TokenAuthorizer, WebSocketTransport};
/// use burn::tensor::Device;
///
/// # let token = "..".to_string();
/// let server = backburn::remote_server([Device::flex()])?.with_authorizer(TokenAuthorizer::new(token)?);
/// let listener = std::net::TcpListener::bind("127.0.0.1:3000")?;
/// server.serve(WebSocketTransport::from_listener(listener))?; // until the process ends
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Who may come
///
/// By itself it lets in everyone who reaches it, as Burn's server does: give it an authorizer
/// ([`TokenAuthorizer`](burn::server::TokenAuthorizer)) before it serves. Whoever is let in computes on the devices, in the memory that they
/// have. An update that does not fit (shapes, types, the number of states) is refused before a kernel sees it, and ends the session that has sent it
/// and no other; what Burn's own operations refuse is Burn's business, so let in whom you trust.
///
/// A WebSocket (`ws://`) is not encrypted: whoever reads the traffic reads the token and the weights. And a
/// [`WebSocketTransport`](burn::server::WebSocketTransport) made with a port listens on all interfaces of the machine; one made with a listener, on that.
///
/// A web page can open a WebSocket to the machine on which it is shown, and Burn's server does not ask where a page comes from. Without a
/// token any page that is visited there can open a session: compute on the devices, fill their memory, seed their random
/// generator, have the server connect to an address that it names, and take a tensor that Burn moves between two devices of the server
/// just then. It sees no other tensor of another session, and no file. With one it is turned away. (Tensors that Burn sends
/// from server to server are asked for without a token, each by a random number of 64 bits.)
///
/// Iroh, Burn's other transport, is encrypted, and comes with Burn's feature `remote`. A server listens there only if it is told to serve an
/// [`IrohTransport`](burn::server::IrohTransport); this crate has not been tried with it.
///
/// # Errors
///
/// If there are no devices, or not all of one backend, or this build of the crate has no kernel for it; if a device can't be used, as
/// [`check_device`].
pub fn remote_server(
    devices: impl IntoIterator<Item = Device>,
) -> Result<RemoteServer, FusedError> {
    let devices: Vec<Device> = devices.into_iter().map(Device::inner).collect();
    let Some(first) = devices.first().cloned() else {
        return Err(refused("there are none: name one"));
    };
    let backend = |device: &Device| discriminant(device.as_dispatch());
    if devices
        .iter()
        .any(|device| backend(device) != backend(&first))
    {
        return Err(refused(
            "they are of several backends: start a server for each",
        ));
    }
    let check = |device| check_device(device, FloatDType::F32);
    devices.iter().try_for_each(check)?;
    let server = RemoteServer::new(devices);
    #[allow(unreachable_patterns)] // What is there depends on the build.
    match first.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => Ok(with_update::<burn::backend::Flex>(server)),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(_) => Ok(with_update::<burn::backend::Cube>(server)),
        _ => Err(refused(
            "this build of backburn has no operations for them: there are some for `flex`, and for CubeCL's devices with \
             the feature of their backend (`wgpu`, `cuda`, ..)",
        )),
    }
}

fn with_update<B: BackendIr + SinglePass>(server: RemoteServer) -> RemoteServer {
    server.with_custom_op::<B, _>(UPDATE, |handles, operation, _| {
        run_update::<B>(handles, operation)
    })
}

fn refused(reason: &str) -> FusedError {
    FusedError::Serve {
        reason: reason.to_string(),
    }
}
