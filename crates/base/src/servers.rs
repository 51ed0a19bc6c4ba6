//! Devices of Burn's remote servers.
//!
//! # Timeouts
//!
//! Burn's client waits for an answer until its connection breaks: forever if a server hangs, and about 15 minutes if a link
//! breaks while data are in flight. So this crate waits on a separate thread with a timeout ([`read_with_timeout`],
//! [`sync_with_timeout`]). The device's own thread, which runs all operations, must not wait: its queue holds 32 operations, and
//! dropping a tensor is one. So reads are used, not `sync`.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use burn_std::id::StreamId;
use parking_lot::Mutex;

use crate::caught::catch_message;

/// Environment variable with the number of seconds within which a server must answer.
const VARIABLE: &str = "BACKBURN_SERVER_TIMEOUT";

static TIMEOUT: LazyLock<Result<Duration, String>> =
    LazyLock::new(|| timeout(std::env::var_os(VARIABLE)));

/// Returns the timeout for this value of the variable.
fn timeout(value: Option<OsString>) -> Result<Duration, String> {
    let Some(value) = value else {
        return Ok(Duration::from_secs(300));
    };
    let seconds = value.to_str().and_then(|it| it.parse::<NonZeroU64>().ok());
    let seconds = seconds.ok_or_else(|| {
        format!("the environment variable `{VARIABLE}` is {value:?}: set it to a whole number of seconds above zero")
    })?;
    Ok(Duration::from_secs(seconds.get()))
}

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

/// Runs `work`, which waits for an answer of the server of `device`. After a timeout, its thread keeps waiting. Returns an error
/// if the timeout can't be read: every training on such a device checks it first.
fn in_time<R: Send + 'static>(
    device: &Device,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    let timeout = TIMEOUT.clone()?;
    let silent = || {
        let seconds = timeout.as_secs();
        format!(
            "its server has not answered within {seconds} s, the limit that `{VARIABLE}` sets (a new process can use it again)"
        )
    };
    if LOST.lock().contains(device) {
        return Err(silent());
    }
    let (sender, answer) = channel();
    let stream = StreamId::current();
    std::thread::spawn(move || {
        let answer = stream.executes(|| catch_message(work));
        // Fails after a timeout.
        let _ = sender.send(answer);
    });
    answer.recv_timeout(timeout).unwrap_or_else(|_| {
        LOST.lock().push(device.clone());
        Err(silent())
    })
}

/// Waits until the server of `device` has run all operations. Returns an error after a time limit. The device must have no
/// autodiff.
pub fn sync_with_timeout(device: &Device) -> Result<(), String> {
    let synced = device.clone();
    let answer = in_time(device, move || {
        // After the read, `sync` only reports errors.
        Tensor::<1>::zeros([1], &synced).try_into_data()?;
        synced.sync()
    });
    answer?.map_err(|error| error.to_string())
}

/// Returns `true` if `device` is on a server.
pub fn is_remote(device: &Device) -> bool {
    #[allow(unreachable_patterns)] // The variants depend on the features.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "remote")]
        burn::backend::DispatchDevice::Remote(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_that_is_no_number_of_seconds_is_an_error() {
        assert_eq!(timeout(None), Ok(Duration::from_secs(300)));
        assert_eq!(timeout(Some("7".into())), Ok(Duration::from_secs(7)));
        for value in ["", "0", "-1", "1.5", "5 s", "five"] {
            let error = timeout(Some(value.into())).unwrap_err();
            assert!(error.contains(VARIABLE), "{error}");
            assert!(error.contains(&format!("{value:?}")), "{error}");
        }
    }
}
