//! A proxy in front of a server. It refuses requests of other servers for a tensor, and can stop forwarding.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{park, spawn};

/// The requests of a client to Burn's servers.
const REQUEST: &[u8] = b"GET /session";

#[derive(Clone)]
pub struct Door {
    pub address: SocketAddr,
    is_silent: Arc<AtomicBool>,
}

impl Door {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Self {
            address: listener.local_addr().unwrap(),
            is_silent: Arc::default(),
        };
        let opened = door.clone();
        spawn(move || {
            for guest in listener.incoming().map_while(Result::ok) {
                let door = opened.clone();
                spawn(move || door.let_in(guest, server));
            }
        });
        door
    }

    /// Stops forwarding, and keeps the connections open.
    pub fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    fn let_in(&self, guest: TcpStream, server: SocketAddr) -> std::io::Result<()> {
        let mut request = [0; REQUEST.len()];
        // Peeks only, so that the server also reads it.
        let seen = loop {
            match guest.peek(&mut request)? {
                // More bytes will follow, or the client has closed the connection.
                seen if 0 < seen && seen < REQUEST.len() => std::thread::yield_now(),
                seen => break seen,
            }
        };
        if request[..seen] != *REQUEST {
            return Ok(());
        }
        let server = TcpStream::connect(server)?;
        guest.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (door, answers) = (self.clone(), (server.try_clone()?, guest.try_clone()?));
        spawn(move || door.forward(answers.0, answers.1));
        self.forward(guest, server);
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
