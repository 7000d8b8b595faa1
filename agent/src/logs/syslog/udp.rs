//! Syslog over UDP: a message per datagram.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use tokio::{net::UdpSocket, sync::watch};

use super::{Intake, drops::KernelDrops};
use crate::{clock::realtime_ns, logs::emit::LogSink};

/// Receive buffer of the socket: about a tenth of a second of 100,000 messages a second.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Datagrams that are taken before other tasks have their turn.
const BURST: usize = 512;
/// More datagrams than the receive buffer holds.
const MAX_BUFFERED: usize = 1 << 16;
/// Interval at which dropped datagrams are counted.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);
/// Greatest length of a datagram.
const MAX_DATAGRAM: usize = 64 << 10;

/// Binds a socket with a large receive buffer.
pub(super) fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    // Beyond the limit of the system with CAP_NET_ADMIN only; without it, up to that limit.
    if set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
        set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Receives until `stop` is true, and then what has arrived by then.
pub(super) async fn receive<S: LogSink>(socket: UdpSocket, intake: Arc<Intake<S>>, mut stop: watch::Receiver<bool>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut drops = KernelDrops::of(&socket, intake.address);
    let mut counted = (Instant::now(), realtime_ns());
    let mut tick = tokio::time::interval(DROPS_INTERVAL);
    while !*stop.borrow_and_update() {
        tokio::select! {
            ready = socket.readable() => {
                if let Err(error) = ready {
                    warn_limited!(address = %intake.address, %error, "syslog datagrams cannot be received");
                    tick.tick().await;
                }
                take(|buffer| socket.try_recv_from(buffer), &intake, &mut buffer, BURST);
                tokio::task::yield_now().await;
            }
            _ = tick.tick() => {}
            // An error means that the pillar has ended.
            changed = stop.changed() => if changed.is_err() { break },
        }
        if counted.0.elapsed() >= DROPS_INTERVAL {
            count(&mut drops, &intake, counted.1);
            counted = (Instant::now(), realtime_ns());
        }
    }
    // Directly: the runtime may not know yet that datagrams have arrived.
    if let Ok(socket) = socket.into_std() {
        take(|buffer| socket.recv_from(buffer), &intake, &mut buffer, MAX_BUFFERED);
        count(&mut drops, &intake, counted.1);
    }
}

fn count<S: LogSink>(drops: &mut KernelDrops, intake: &Intake<S>, from_ns: i64) {
    let datagrams = drops.since_last();
    if datagrams > 0 {
        warn_limited!(address = %intake.address, datagrams, "the kernel dropped syslog datagrams: the receive buffer was full");
        intake.lost(datagrams, from_ns);
    }
}

fn take<S: LogSink>(
    mut receive: impl FnMut(&mut [u8]) -> io::Result<(usize, SocketAddr)>,
    intake: &Intake<S>,
    buffer: &mut [u8],
    most: usize,
) {
    for _ in 0..most {
        match receive(buffer) {
            Ok((length, from)) => intake.take(&buffer[..length], from.ip()),
            // An error of an earlier answer; syslog has none.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                warn_limited!(address = %intake.address, %error, "a syslog datagram cannot be received");
                return;
            }
            Err(_) => return,
        }
    }
}
