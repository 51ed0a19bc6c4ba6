//! Servers in their own processes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use burn::remote::RemoteHost;

use super::proxy::Proxy;
use super::{SERVES, SERVES_AT, TOKEN};

use crate::common::*;

/// One of Burn's servers, unmodified.
pub struct Server {
    process: Child,
    proxy: Proxy,
    pub address: SocketAddr,
    pub device: Device,
}

impl Server {
    pub fn start() -> Self {
        Self::start_as("flex")
    }

    /// A server of the backend of this name.
    pub fn start_as(backend: &str) -> Self {
        let (process, address) = start(&[], backend, "127.0.0.1:0");
        let proxy = Proxy::to(address);
        let device = connect(proxy.address);
        Self {
            process,
            proxy,
            address,
            device,
        }
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Stops its process, which keeps its connections.
    pub fn stop(&self) {
        let id = self.process.id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &id]).status();
        assert!(stopped.unwrap().success());
    }

    /// Cuts the link to the server without closing it.
    pub fn fall_silent(&self) {
        self.proxy.fall_silent();
    }

    /// Returns its device over another connection.
    pub fn connected_again(&self) -> Device {
        connect(self.proxy.address)
    }
}

/// Starts a server of `backend` that listens at `address`, with `command` as a prefix of its own command. Also returns
/// the address at which it listens.
pub fn start(command: &[&str], backend: &str, address: &str) -> (Child, SocketAddr) {
    let exe = std::env::current_exe().unwrap();
    let mut words = command.iter().map(AsRef::as_ref).chain([exe.as_os_str()]);
    let mut process = Command::new(words.next().unwrap())
        .args(words)
        .args(["serve", "--exact", "--nocapture"])
        .env(SERVES, backend)
        .env(SERVES_AT, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    let address = lines.find_map(|line| Some(line.strip_prefix("serves ")?.to_string()));
    let address = address.expect("the server tells its address");
    // The test reads no further, and the server must not block on its output.
    std::thread::spawn(move || lines.for_each(drop));
    (process, address.parse().unwrap())
}

pub fn connect(address: SocketAddr) -> Device {
    let host = RemoteHost::websocket(&format!("ws://{address}")).with_credential(TOKEN);
    Device::remote_options(&host).init().unwrap().autodiff()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
