//! The decision: from all nodes, pods, Secrets and what the agents say to what agents and aggregator should do, what
//! each node's status is, and what is worth an Event. No I/O and no clock: time is an argument.
//!
//! [`Engine`] is told what changed and keeps account of what that may touch, so that a change costs what it touches:
//!
//! ```text
//! apply_node, apply_pod ─▶ who selects which pod (index) ─▶ plan of the nodes concerned ─▶ Desired: their hosts
//! set_secret ────────────────────────────────────────────▶ plan of its users                  │
//! set_reports, tick ─────────────────────────────────────────────────────────────▶ status of the nodes concerned
//! ```
//!
//! A pod that several nodes select belongs to the oldest (`creationTimestamp`, then `namespace/name`).

mod engine;
mod hosts;
mod index;
mod input;
mod judge;
mod losses;
mod output;
mod plan;
mod reason;
mod restarts;
#[cfg(test)]
mod tests;

pub use engine::{Counts, Engine};
pub use input::{ContainerInput, Key, NodeInput, PodInput, SecretInput, container_id};
pub use output::{Happening, Outcome, StatusWrite};
pub use reason::Reason;
