//! The demo node: a stand-in for octez-node that speaks the Tezos P2P protocol on real sockets.
//!
//! One thread runs an event loop ([`reactor`]) over non-blocking sockets ([`socket`]), as Lwt does in Octez. A [`Behaviour`](behaviour::Behaviour)
//! decides what a [`connection`] sends: a recorded conversation ([`script`]), endless valid traffic ([`session`], [`messages`]), random
//! bytes ([`noise`]), or protocol violations ([`hostile`]). Events go to standard output as JSON lines ([`report`]), and what Octez would
//! log to a file ([`log`]). Its memory is that of [`subsystems`].

pub mod behaviour;
mod clock;
mod connection;
pub mod hostile;
pub mod io_sizes;
pub mod log;
pub mod messages;
pub mod noise;
pub mod octez;
pub mod reactor;
pub mod report;
pub mod script;
pub mod session;
pub mod socket;
pub mod subsystems;
pub mod wire;

#[cfg(test)]
mod tests;
