//! Reconciliation without I/O: computes the desired state, statuses and Events from the observed state.
//!
//! Inputs are `TezosNode` and `NodeTrace` resources, pods, Secrets and agent reports. Time is an argument; nothing here reads a clock.
//! [`Reconciler`] receives changes and tracks what each change affects, so that the cost of a change is proportional to
//! the objects it affects:
//!
//! ```text
//! apply_node, apply_pod ─▶ selectors of each pod (index) ─▶ plans of the affected nodes ─▶ Desired: hosts and catalog
//! set_secret ────────────────────────────────────────────▶ plans of the referencing nodes       │
//! set_reports, elapsed time ──────────────────────────────────────────────────────────▶ statuses of the affected nodes
//! ```
//!
//! A resource of either kind describes a node. A pod that several of one kind select belongs to the oldest one
//! (`creationTimestamp`, then `namespace/name`). One `TezosNode` and one `NodeTrace` observe a pod together, if they name
//! the same container and executable; otherwise the `TezosNode` does.

mod conditions;
mod drops;
mod hosts;
mod index;
mod input;
mod output;
mod plan;
mod reason;
mod reconciler;
mod restarts;
mod status;
#[cfg(test)]
mod tests;
mod trace;

pub use input::{ContainerInput, Key, NodeInput, NodeKind, NodeSpec, PodInput, SecretInput, container_id};
pub use output::{EventRecord, Outcome, StatusWrite};
pub use reason::Reason;
pub use reconciler::{Counts, Reconciler};
