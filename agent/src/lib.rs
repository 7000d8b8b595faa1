//! The agent of one host: finds the observed nodes' processes, captures their conversations, decrypts and decodes them
//! here, and sends records to an aggregator.
//!
//! ```text
//!   kernel ring ──▶ reader ──▶ │ bounded channel │ ──▶ worker ──▶ lanes ──▶ uplink ──▶ aggregator
//!                     ▲                                │  │
//!                     └── watch, add, keep, leave ◀────┘  └──▶ journal, targets, identities
//! ```
//!
//! [`Agent::start`] wires it; [`Running::shutdown`] ends it. What belongs to no machine (lanes, matching, the
//! interpreter, the journal) is pure and tested without a kernel; what asks the machine is a thin shell around it.
//!
//! Secrets: identities are read through the target's own root, live in memory that wipes itself, and go nowhere.
//! A program that hosts an agent calls [`protect_process`] first.

mod account;
mod agent;
mod check;
mod clock;
mod config;
mod error;
mod folder;
mod identity;
mod interpreter;
mod journal;
mod lanes;
mod protect;
mod reader;
mod targets;
mod uplink;
mod worker;

pub use agent::{Agent, Running, Status};
pub use chainscope_ebpf::{CaptureMode, Finding};
pub use check::{require_fit, self_check};
pub use config::{Config, NodeConfig, Store, TargetLimits};
pub use error::Error;
pub use lanes::{Dropped, LaneStatus};
pub use protect::protect_process;
pub use uplink::{Link, Remote, Uplink};
