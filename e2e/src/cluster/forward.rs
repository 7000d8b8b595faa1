//! Port forwarding into a host's network namespace.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A port of 127.0.0.1 that is forwarded into a network namespace. It accepts no connections after the drop.
pub struct Forward {
    port: u16,
    is_closed: Arc<AtomicBool>,
}

impl Forward {
    /// Forwards to that address, as seen from the namespace.
    ///
    /// # Panics
    /// If the namespace does not exist, or there is no free port.
    #[must_use]
    pub fn new(network: &Path, target: SocketAddr) -> Self {
        let network = File::open(network).unwrap_or_else(|e| panic!("{}: {e}", network.display()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("free port");
        let port = listener.local_addr().expect("bound").port();
        let is_closed = Arc::new(AtomicBool::new(false));
        let (closed, network) = (is_closed.clone(), Arc::new(network));
        thread::spawn(move || {
            for here in listener.incoming().map_while(Result::ok) {
                if closed.load(Ordering::Relaxed) {
                    break;
                }
                let network = network.clone();
                thread::spawn(move || {
                    match relay(here, &network, target) {
                        // The client sees its connection closed and retries.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                        Err(error) => eprintln!("forward to {target}: {error}"),
                        Ok(()) => {}
                    }
                });
            }
        });
        Self { port, is_closed }
    }

    /// The local port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // Wakes the thread that waits in accept(2).
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Copies between a connection and a new one in the namespace, which only this thread enters.
fn relay(here: TcpStream, network: &File, target: SocketAddr) -> io::Result<()> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    let there = TcpStream::connect(target)?;
    let (mut from, mut to) = (here.try_clone()?, there.try_clone()?);
    let back = thread::spawn(move || {
        let _ = io::copy(&mut to, &mut from);
        let _ = from.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (here, there);
    // A reset by either peer is not an error.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = back.join();
    Ok(())
}
