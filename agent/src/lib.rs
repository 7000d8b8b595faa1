//! The agent of one host: finds the observed nodes' processes, captures their conversations, decrypts and decodes them
//! here, and sends records to an aggregator.
//!
//! ```text
//!   kernel ring ──▶ reader ──▶ │ bounded channel │ ──▶ worker ──▶ lanes ──▶ uplink ──▶ aggregator
//!                     ▲                                │  │  ▲
//!                     └── watch, add, keep, leave ◀────┘  │  └── cluster: what to observe, from the operator
//!                                                         ├──▶ journal, targets, holding, identities
//!                                                         └──▶ memory: profiles, beside the lanes to the uplink
//! ```
//!
//! [`Agent::start`] wires it; [`Running::shutdown`] ends it. What belongs to no machine (lanes, matching, the
//! interpreter, the journal) is pure and tested without a kernel; what asks the machine is a thin shell around it.
//!
//! Secrets: identities are read through the target's own root, live in memory that wipes itself, and go nowhere.
//! A program that hosts an agent calls [`protect_process`](chainscope_quiet::protect_process) first.

mod account;
mod agent;
mod check;
mod clock;
mod cluster;
mod config;
mod error;
mod folder;
mod holding;
mod identity;
mod interpreter;
mod journal;
mod lanes;
mod memory;
mod monitor;
mod reader;
mod rooted;
mod spool;
mod symbols;
mod targets;
mod unfit;
mod uplink;
mod worker;

pub use agent::{Agent, Running, Status};
pub use chainscope_ebpf::{CaptureMode, Finding};
pub use check::{require_fit, self_check};
pub use cluster::ClusterConfig;
pub use config::{Config, NodeConfig, Store, TargetLimits};
pub use error::Error;
pub use lanes::{Dropped, LaneStatus};
pub use monitor::Monitor;
pub use targets::pods::Watch;
pub use unfit::Unfit;
pub use uplink::{Link, Remote, Uplink};
