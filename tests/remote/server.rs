//! Servers in processes of their own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use burn::remote::RemoteHost;
use burn::tensor::Device;

use super::door::door_to;
use super::{SERVES, TOKEN};

pub struct Server {
    process: Child,
    address: SocketAddr,
    url: String,
    pub device: Device,
}

impl Server {
    pub fn start() -> Self {
        Self::start_as("backburn")
    }

    pub fn start_as(kind: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["serve", "--exact", "--nocapture"])
            .env(SERVES, kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        let address = lines.find_map(|line| Some(line.strip_prefix("serves ")?.to_string()));
        let address = address.expect("the server tells its address");
        let address = address.parse().unwrap();
        let url = format!("ws://{}", door_to(address));
        // Nobody reads on, and the server must not wait for that.
        std::thread::spawn(move || lines.for_each(drop));
        let device = connect(&url);
        Self {
            process,
            address,
            url,
            device,
        }
    }
}

impl Server {
    /// Ends its process.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Its device by another connection.
    pub fn connected_again(&self) -> Device {
        connect(&self.url)
    }

    /// Its device for another client: by another door, since Burn has one session for each address.
    pub fn device_of_another(&self) -> Device {
        connect(&format!("ws://{}", door_to(self.address)))
    }

    /// Where it is reached.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its device for someone who presents `token`, if it lets them in.
    pub fn connect_as(&self, token: Option<&str>) -> Result<Device, String> {
        let host = RemoteHost::websocket(&self.url);
        let host = match token {
            Some(token) => host.with_credential(token),
            None => host,
        };
        let device = Device::remote_options(&host).init();
        device.map_err(|error| error.to_string())
    }
}

fn connect(url: &str) -> Device {
    let host = RemoteHost::websocket(url).with_credential(TOKEN);
    Device::remote_options(&host).init().unwrap().autodiff()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
