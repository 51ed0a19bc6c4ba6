//! A proxy in front of a server. It refuses requests of other servers for a tensor, and can stop forwarding.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{park, spawn};

/// The requests of a client to Burn's servers.
const REQUEST: &[u8] = b"GET /session";

#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    is_silent: Arc<AtomicBool>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            is_silent: Arc::default(),
        };
        let shared = proxy.clone();
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let proxy = shared.clone();
                spawn(move || proxy.serve(client, server));
            }
        });
        proxy
    }

    /// Stops forwarding, and keeps the connections open.
    pub fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    fn serve(&self, client: TcpStream, server: SocketAddr) -> std::io::Result<()> {
        let mut request = [0; REQUEST.len()];
        // Peeks only, so that the server also reads it.
        let seen = loop {
            match client.peek(&mut request)? {
                // More bytes will follow, or the client has closed the connection.
                seen if 0 < seen && seen < REQUEST.len() => std::thread::yield_now(),
                seen => break seen,
            }
        };
        if request[..seen] != *REQUEST {
            return Ok(());
        }
        let server = TcpStream::connect(server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (proxy, answers) = (self.clone(), (server.try_clone()?, client.try_clone()?));
        spawn(move || proxy.forward(answers.0, answers.1));
        self.forward(client, server);
        Ok(())
    }

    /// Forwards until one side closes, and then closes the other.
    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            while self.is_silent.load(Ordering::SeqCst) {
                park();
            }
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
