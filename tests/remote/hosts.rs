//! Two hosts with their own addresses: network namespaces that a veth pair connects.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use super::resumed::{TIMEOUT, assert_resumed, with_timeout};
use super::server::{connect, start};
use crate::common::assert_has_passed;

const TEST: &str = "hosts::link_between_hosts_cut_in_step_resumes_from_checkpoint";
/// In the process of the client, the names of the hosts without their last letter.
const HOSTS: &str = "BACKBURN_TEST_HOSTS";
/// The addresses of the server. Burn opens one session for each.
const SERVER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3)];

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {words}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// The namespaces `{0}c` of the client and `{0}s` of the server, each with an end of the same name.
struct Hosts(String);

impl Hosts {
    fn new() -> Result<Self, String> {
        let name = format!("bb{}", std::process::id());
        ip(&format!("netns add {name}c"))?;
        let hosts = Self(name.clone());
        ip(&format!("netns add {name}s"))?;
        ip(&format!(
            "-n {name}c link add {name}c type veth peer name {name}s netns {name}s"
        ))?;
        let addresses = [
            ("c", Ipv4Addr::new(10, 77, 0, 1)),
            ("s", SERVER[0]),
            ("s", SERVER[1]),
        ];
        for (end, address) in addresses {
            ip(&format!(
                "-n {name}{end} address add {address}/24 dev {name}{end}"
            ))?;
        }
        ip(&format!("-n {name}c link set {name}c up"))?;
        ip(&format!("-n {name}s link set {name}s up"))?;
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for end in ["c", "s"] {
            let _ = ip(&format!("netns del {}{end}", self.0));
        }
    }
}

#[test]
fn link_between_hosts_cut_in_step_resumes_from_checkpoint() {
    if let Ok(name) = std::env::var(HOSTS) {
        return with_timeout(TEST, move || on_client(&name));
    }
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return println!("skipped, no two hosts can be made: {reason}"),
    };
    let output = Command::new("ip")
        .args(["netns", "exec", &format!("{}c", hosts.0)])
        .arg(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture"])
        .env(HOSTS, &hosts.0)
        .output()
        .unwrap();
    assert_has_passed(&output);
}

fn on_client(name: &str) {
    let server = format!("{name}s");
    let command = ["ip", "netns", "exec", &server];
    let (mut process, listens) = start(&command, "flex", "0.0.0.0:0");
    let [address, other] = SERVER.map(|ip| SocketAddr::from((ip, listens.port())));
    let set = move |state: &str| ip(&format!("-n {server} link set {server} {state}")).unwrap();
    let cut = set.clone();
    assert_resumed(
        "cut",
        connect(address),
        move || cut("down"),
        TIMEOUT,
        || {
            set("up");
            connect(other)
        },
    );
    process.kill().unwrap();
    process.wait().unwrap();
}
