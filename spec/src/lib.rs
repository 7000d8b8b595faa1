//! Configuration: what to observe, where, and how long to keep it. The file of one machine (`chainscope.toml`), and the
//! types that it shares with the `TezosNode` resource of a cluster.
//!
//! [`Config`] is the whole file, read by [`Config::parse`]; [`ObserveSpec`] selects what is recorded of a node and how
//! long it is kept; [`HostTarget`] selects the node's process on a machine, [`PodTarget`] in a cluster. Files of the
//! TezEdge debugger are accepted as well (`legacy`).

#![forbid(unsafe_code)]

mod config;
mod error;
mod latency;
mod legacy;
mod logs;
mod observe;
mod pod;
mod target;
#[cfg(test)]
mod tests;
mod trace;

pub use config::{Capture, Config, NodeConfig, SEARCH_PATHS};
pub use error::Error;
pub use latency::{Latency, TimedFunction, TimedSpan, TimedTransactions};
pub use logs::{LogSources, Logs, Redaction, RedactionError, Syslog};
pub use observe::{BYTES, Memory, MemorySnapshots, Network, ObserveSpec, Retention, Stored};
pub use pod::{
    PodIdentity, PodNetwork, PodOperator, PodPorts, PodRequirement, PodSelector, PodTarget, PortRef, SecretRef,
};
pub use target::HostTarget;
pub use trace::{Trace, TraceError, TraceRule, built_in_contracts};

/// Default for serde of what is on unless it is turned off.
fn default_true() -> bool {
    true
}
