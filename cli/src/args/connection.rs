//! Arguments that select by the connection.

use std::net::SocketAddr;

use clap::Args;

/// Which connections.
#[derive(Debug, Args)]
pub(crate) struct ConnectionFilters {
    /// Only this peer's address, as ADDRESS:PORT or [ADDRESS]:PORT
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) remote: Option<SocketAddr>,
    /// Only connections with the peer of this identity
    #[arg(long, value_name = "ID")]
    pub(crate) peer_id: Option<String>,
    /// Only this observed process, by its label such as "pid 4711", as `chainscope nodes` lists it
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
}
