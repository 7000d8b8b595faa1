//! The demo node: a stand-in for octez-node that speaks the P2P protocol on real sockets.
//!
//! One thread runs an event loop ([`reactor`]) over non-blocking sockets ([`socket`]), as Lwt does in Octez. What a connection says is
//! decided by its [`Behaviour`](reactor::Behaviour): a recorded conversation ([`script`]), endless valid traffic of its own ([`session`],
//! [`messages`]), or something that no honest peer would say ([`hostile`]). What happened goes to standard output as JSON lines ([`report`]).

pub mod hostile;
pub mod messages;
pub mod octez;
pub mod plain;
pub mod reactor;
pub mod report;
pub mod script;
pub mod session;
pub mod socket;
pub mod wire;

#[cfg(test)]
mod tests;
