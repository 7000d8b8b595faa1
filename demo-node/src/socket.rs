//! TCP sockets as octez-node makes them: `AF_INET6` always (IPv4 peers are v4-mapped), non-blocking, plain read(2) and write(2).
//!
//! Source: Octez `p2p_fd.ml` and Lwt_unix.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType};

/// Time limit of a connect(2) in milliseconds, as Octez's `connection-timeout`. The kernel's own is two minutes, in which it repeats one
/// SYN: if kube-proxy did not know the Service yet when the first was sent, none of them reaches the peer.
const CONNECT_TIMEOUT_MS: u32 = 10_000;

/// An IPv4 address as the v4-mapped IPv6 address that a dual-stack socket takes.
#[must_use]
pub fn mapped(address: SocketAddr) -> SocketAddrV6 {
    let ip = match address.ip() {
        // "0.0.0.0" means every address; its mapped form would refuse IPv6 peers.
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    SocketAddrV6::new(ip, address.port(), 0, 0)
}

fn stream() -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fcntl_setfl(&fd, OFlags::NONBLOCK)?;
    sockopt::set_ipv6_v6only(&fd, false)?;
    Ok(fd)
}

/// A listening socket; port 0 takes a free one.
///
/// # Errors
/// The kernel's, such as "address in use".
pub fn listen(address: SocketAddr, backlog: i32) -> Result<(OwnedFd, SocketAddr), Errno> {
    let fd = stream()?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &mapped(address))?;
    rustix::net::listen(&fd, backlog)?;
    let local = name(rustix::net::getsockname(&fd)?);
    Ok((fd, local))
}

/// Starts to connect. The result is known once the socket is writable: [`connect_result`].
///
/// # Errors
/// The kernel's immediate ones; `EINPROGRESS` is not an error.
pub fn connect(address: SocketAddr, send_buffer: Option<usize>) -> Result<OwnedFd, Errno> {
    let fd = stream()?;
    if let Some(bytes) = send_buffer {
        sockopt::set_socket_send_buffer_size(&fd, bytes)?;
    }
    sockopt::set_tcp_user_timeout(&fd, CONNECT_TIMEOUT_MS)?;
    match rustix::net::connect(&fd, &mapped(address)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error),
    }
}

/// The result of a connect(2): whether the socket is connected by now.
///
/// # Errors
/// The kernel's, such as "connection refused", and "connection timed out" after [`CONNECT_TIMEOUT_MS`].
pub fn connect_result(fd: impl AsFd) -> Result<bool, Errno> {
    sockopt::socket_error(&fd)??;
    // Not writable yet: the peer's address is unknown.
    if addresses(&fd).is_err() {
        return Ok(false);
    }
    // The same limit would hold for the acknowledgement of what is sent.
    sockopt::set_tcp_user_timeout(&fd, 0)?;
    Ok(true)
}

/// Takes a connection from the backlog, if there is one.
///
/// # Errors
/// The kernel's, except `EAGAIN`, which is `None`.
pub fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Local and remote address of a connected socket.
///
/// # Errors
/// The kernel's, such as "not connected" if the peer has closed already.
pub fn addresses(fd: impl AsFd) -> Result<(SocketAddr, SocketAddr), Errno> {
    Ok((name(rustix::net::getsockname(&fd)?), name(rustix::net::getpeername(&fd)?.ok_or(Errno::NOTCONN)?)))
}

fn name(address: SocketAddrAny) -> SocketAddr {
    SocketAddr::try_from(address).unwrap_or(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))
}
