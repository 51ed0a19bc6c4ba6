//! Hosts this machine's devices for trainings in other processes or on other machines, with backburn's operations.
//!
//! ```sh
//! cargo run --release --features remote --example serve
//! cargo run --release --features remote --example serve -- --help
//! ```

#[path = "../shared/backend.rs"]
mod backend;

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result, ensure};
use burn::server::{AllowAll, TokenAuthorizer, WebSocketTransport};
use clap::Parser;

use backend::Backend;

/// Hosts devices of this machine.
#[derive(Parser, Debug)]
struct Options {
    /// What is hosted.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    device: Backend,

    /// Where to listen. A WebSocket is not encrypted: beyond this machine, use it on a network that you trust.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,

    /// What clients must present; made up and printed if it is left out. In the environment it is out of sight of other users.
    #[arg(long, env = "BACKBURN_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Let every program of this machine in.
    #[arg(long, conflicts_with = "token")]
    without_token: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let server = backburn::remote_server([options.device.device()])?;
    let listener = TcpListener::bind(options.listen);
    let listener = listener.with_context(|| format!("can't listen on {}", options.listen))?;
    let address = listener.local_addr()?;
    let reached = match address.ip().is_unspecified() {
        true => "  (with an address of this machine in the place of that one)",
        false => "",
    };
    let server = if options.without_token {
        ensure!(
            address.ip().is_loopback(),
            "without a token only this machine may reach the server: listen on 127.0.0.1"
        );
        server.with_authorizer(AllowAll)
    } else {
        let token = options.token.unwrap_or_else(|| {
            let random: u128 = rand::random();
            println!("token {random:032x}");
            format!("{random:032x}")
        });
        server.with_authorizer(TokenAuthorizer::new(token)?)
    };
    println!("ws://{address}{reached}");
    server.serve(WebSocketTransport::from_listener(listener))?;
    Ok(())
}
