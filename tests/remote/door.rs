//! The door of a server, for those who train on it: another server that comes for a tensor is turned away.

use std::io::copy;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::spawn;

/// What a client of Burn's servers asks for.
const REQUEST: &[u8] = b"GET /session";

/// The address of a door to `server`.
pub fn door_to(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    spawn(move || {
        for guest in listener.incoming().map_while(Result::ok) {
            spawn(move || let_in(guest, server));
        }
    });
    address
}

fn let_in(guest: TcpStream, server: SocketAddr) -> std::io::Result<()> {
    let mut request = [0; REQUEST.len()];
    // Nothing is taken away: the server reads it, too.
    let seen = loop {
        match guest.peek(&mut request)? {
            // More is to come, or the guest has gone.
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
    let answers = (server.try_clone()?, guest.try_clone()?);
    spawn(move || carry(answers.0, answers.1));
    carry(guest, server);
    Ok(())
}

/// Until one of them closes, and then the other.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let _ = copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
