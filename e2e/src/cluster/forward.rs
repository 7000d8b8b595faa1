//! A port of this machine that leads into a host's network: to the API server, to a Service.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A port of 127.0.0.1 whose connections go on inside a network namespace. Dropped, it takes no more.
pub struct Forward {
    port: u16,
    over: Arc<AtomicBool>,
}

impl Forward {
    /// Leads to that address as seen from the namespace.
    ///
    /// # Panics
    /// If there is no such namespace, or no free port.
    #[must_use]
    pub fn new(network: &Path, target: SocketAddr) -> Self {
        let network = File::open(network).unwrap_or_else(|e| panic!("{}: {e}", network.display()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let over = Arc::new(AtomicBool::new(false));
        let (ours, network) = (over.clone(), Arc::new(network));
        thread::spawn(move || {
            for here in listener.incoming().map_while(Result::ok) {
                if ours.load(Ordering::Relaxed) {
                    break;
                }
                let network = network.clone();
                thread::spawn(move || {
                    match carry(here, &network, target) {
                        // Who asked sees his connection closed, and asks again.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                        Err(error) => eprintln!("forward to {target}: {error}"),
                        Ok(()) => {}
                    }
                });
            }
        });
        Self { port, over }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // It waits for the next connection: here it is.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Joins a connection with a new one inside. Threads have namespaces of their own: only this one moves.
fn carry(here: TcpStream, network: &File, target: SocketAddr) -> io::Result<()> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    let there = TcpStream::connect(target)?;
    let (mut from, mut to) = (here.try_clone()?, there.try_clone()?);
    let back = thread::spawn(move || {
        let _ = io::copy(&mut to, &mut from);
        let _ = from.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (here, there);
    // A peer that resets its connection is no news.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = back.join();
    Ok(())
}
