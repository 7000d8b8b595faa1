//! What to observe, where, and for how long: the configuration of one machine (`chainscope.toml`) and the parts of it
//! that a cluster's `TezosNode` shares.
//!
//! [`Config`] is the file as a whole, read by [`Config::parse`]; [`ObserveSpec`] says what to record of a node and how
//! long to keep it; [`HostTarget`] says how to find the node's process on this machine,
//! [`PodTarget`] how to find it in a cluster. Files written for the TezEdge
//! recorder are understood too.

#![forbid(unsafe_code)]

mod config;
mod error;
mod legacy;
mod observe;
mod pod;
mod target;
#[cfg(test)]
mod tests;

pub use config::{Capture, Config, NodeConfig, SEARCH_PATHS};
pub use error::Error;
pub use observe::{Memory, MemorySnapshots, Network, ObserveSpec, Retention, Stored};
pub use pod::{
    PodIdentity, PodNetwork, PodOperator, PodPorts, PodRequirement, PodSelector, PodTarget, PortRef, SecretRef,
};
pub use target::HostTarget;
