//! The agent of one host: finds the observed nodes' processes, captures their conversations, decrypts and decodes them
//! here, and sends records to an aggregator.
//!
//! ```text
//!   kernel ring ──▶ reader ──▶ │ bounded channel │ ──▶ worker ──▶ streams ──▶ uplink ──▶ aggregator
//!                     ▲                                │  │  ▲
//!                     └── watch, add, keep, leave ◀────┘  │  └── cluster: what to observe, from the operator
//!                                                         ├──▶ journal, targets, holding, identities
//!                                                         └──▶ memory: profiles, beside the streams to the uplink
//! ```
//!
//! [`Agent::start`] wires it; [`Running::shutdown`] ends it. What belongs to no machine (streams, matching, the
//! interpreter, the journal) is pure and tested without a kernel; what asks the machine is a thin shell around it.
//!
//! Secrets: identities are read through the target's own root, live in memory that wipes itself, and go nowhere.
//! A program that hosts an agent calls [`protect_process`](chainscope_hygiene::protect_process) first.

mod agent;
mod check;
mod clock;
mod config;
mod delivery;
mod error;
mod folder;
mod memory;
mod metrics;
mod network;
mod operator;
mod symbols;
mod targets;
mod unsupported;
mod worker;

pub use agent::{Agent, Running, Status};
pub use chainscope_ebpf::{Finding, network::CaptureMode};
pub use check::{require_fit, self_check};
pub use config::{Config, NodeConfig, Store, TargetLimits};
pub use delivery::uplink::{Link, Remote, Uplink};
pub use delivery::{Dropped, StreamStatus};
pub use error::Error;
pub use metrics::Monitor;
pub use operator::ClusterConfig;
pub use targets::pods::Watch;
pub use unsupported::Unfit;
