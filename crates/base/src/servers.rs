//! Devices of Burn's remote servers.
//!
//! # Timeouts
//!
//! Burn's client waits for an answer until its connection breaks: forever if a server hangs, and about 15 minutes if a link
//! breaks while data are in flight. So this crate waits on a separate thread with a timeout ([`read_with_timeout`],
//! [`sync_with_timeout`]). The device's own thread, which runs all operations, must not wait: its queue holds 32 operations, and
//! dropping a tensor is one. So reads are used, not `sync`.

use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};
use burn_std::id::StreamId;
use parking_lot::Mutex;

use crate::caught::caught;
use crate::host;

/// Environment variable with the number of seconds within which a server must answer.
const VARIABLE: &str = "BACKBURN_SERVER_TIMEOUT";

static TIMEOUT: LazyLock<Duration> = LazyLock::new(|| {
    let seconds = std::env::var(VARIABLE).ok().and_then(|it| it.parse().ok());
    Duration::from_secs(seconds.unwrap_or(300))
});

/// Devices whose servers have not answered in time. A process has one session for each server, and Burn does not reopen it.
static LOST: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Runs `work`, which reads from `device` (without autodiff), and returns its result.
///
/// # Panics
///
/// If `device` is on a server that does not answer in time.
pub fn read_with_timeout<R: Send + 'static>(
    device: &Device,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    match is_remote(device) {
        true => in_time(device, work).unwrap_or_else(|reason| panic!("{reason}")),
        false => work(),
    }
}

/// Runs `work`, which waits for an answer of the server of `device`. After a timeout, its thread keeps waiting.
fn in_time<R: Send + 'static>(
    device: &Device,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    let silent = || {
        let seconds = TIMEOUT.as_secs();
        format!("its server has not answered within {seconds} s, the limit that `{VARIABLE}` sets")
    };
    if LOST.lock().contains(device) {
        return Err(silent());
    }
    let (sender, answer) = channel();
    let stream = StreamId::current();
    std::thread::spawn(move || {
        let answer = stream.executes(|| caught(work));
        // Fails after a timeout.
        let _ = sender.send(answer);
    });
    answer.recv_timeout(*TIMEOUT).unwrap_or_else(|_| {
        LOST.lock().push(device.clone());
        Err(silent())
    })
}

/// Waits until the server of `device`, which has no autodiff, has run all operations.
pub fn sync_with_timeout(device: &Device) -> Result<(), String> {
    let asked = device.clone();
    let answer = in_time(device, move || {
        // After the read, `sync` only reports errors.
        Tensor::<1>::zeros([1], &asked).try_into_data()?;
        asked.sync()
    });
    answer?.map_err(|error| error.to_string())
}

/// Returns `true` if `device` is on a server.
pub fn is_remote(device: &Device) -> bool {
    #[allow(unreachable_patterns, unused_variables)] // What is there depends on the build.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "remote")]
        burn::backend::DispatchDevice::Remote(_) => true,
        _ => false,
    }
}

/// Returns `true` if Burn would transfer a tensor directly between two servers, or between two devices of a server.
///
/// This crate transfers through this process instead. A server waits forever if the other is gone, or if the tensor becomes
/// ready during the request (`ExternalCommService` of Burn 0.22.1). The other server may also be unreachable under its address.
/// Two devices of one server can't be distinguished from those of two.
fn between_servers(from: &Device, to: &Device) -> bool {
    is_remote(from) && is_remote(to) && from.clone().inner() != to.clone().inner()
}

/// Like [`Tensor::to_device`], but transfers between servers go through this process. On the same device it returns the same
/// tensor.
pub fn to_device<const D: usize, K: Basic + 'static>(
    tensor: Tensor<D, K>,
    device: &Device,
) -> Tensor<D, K> {
    let from = tensor.device();
    if from == *device {
        return tensor;
    }
    let between = match between_servers(&from, device) {
        true => host(device),
        false => device.clone(),
    };
    let read = match is_remote(&from) && !from.is_autodiff() {
        true => read_with_timeout(&from, move || tensor.to_device(&between)),
        // For a tracked tensor, another thread would wait for the graph.
        false => tensor.to_device(&between),
    };
    match read.device() == *device {
        true => read,
        false => read.to_device(device),
    }
}

/// Like [`Module::fork`], but tensors on another server than `device` go through this process.
pub fn forked<M: Module>(module: M, device: &Device) -> M {
    let devices = module.devices();
    match devices.iter().any(|from| between_servers(from, device)) {
        // The module as a whole, since Burn's mappers don't visit constants.
        true => module.fork(&host(device)).fork(device),
        false => module.fork(device),
    }
}
