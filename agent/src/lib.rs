//! The agent of one host: finds the observed nodes' processes, captures, decrypts and decodes their traffic, profiles
//! their memory, and sends records and profiles to an aggregator.
//!
//! The data path, from the kernel to the aggregator:
//!
//! ```text
//!   kernel ── ring ──▶ network: reader ─▶ worker ─▶ interpreter ── records ──▶ delivery: streams, spool ─▶ uplink ─▶
//!   files, containers, syslog ──▶ logs ───── records ──────────────────▶ delivery
//!   kernel ── rings ──▶ trace: tracers ───── records ──────────────────▶ delivery
//!   kernel ── maps, ring ──▶ latency: recorders ── records ────────────▶ delivery
//!   kernel ── maps ──▶ memory: watcher ─▶ naming ─▶ profiles ── states ───────────────────────────────────▲
//! ```
//!
//! The control path, with the types of its values:
//!
//! ```text
//!   operator client ── PodMap ──▶ discovery ── TargetChange ──▶ inbox of each pillar
//!                                    ▲                            │ network: Command to the reader, which applies it
//!                                    └──────── Notice ────────────┤   to the kernel: watch, add, release, Verdict
//!                                                                 │ memory: Command to the watcher
//!   aggregator ── acknowledgements ──▶ uplink ──▶ streams, spool, profiles
//!   interpreter ── spare batches ──▶ reader
//!   pillars, discovery ── tallies, figures ──▶ status thread ── Report ──▶ operator client
//! ```
//!
//! `targets` decides which processes are observed; `network`, `memory` and `logs` are pillars (trait `Pillar`) that get its changes
//! in their inboxes, as are `trace::pillar` and `latency::pillar`; `symbols` names code for `memory`; `delivery` keeps records until
//! they are acknowledged; `operator` is the client of the operator. [`trace`] reads tracepoints and attaches to them, [`latency`]
//! times functions; the command line uses both without an agent. [`Agent::start`] wires the pillars, [`Running::shutdown`] stops them.
//! Modules below these (`blocking`, `config`, `clock`, `figures`, `folder`, `thread`, `openmetrics`) know none of them.
//!
//! Secrets: identities are read through the target's own root, live in memory that is wiped, and are not sent on.
//! A program that hosts an agent calls [`protect_process`](chainscope_hygiene::protect_process) first.

mod agent;
mod blocking;
mod check;
mod clock;
mod config;
mod delivery;
mod error;
mod figures;
mod folder;
pub mod latency;
mod logs;
mod memory;
mod memory_limit;
mod metrics;
mod network;
mod openmetrics;
mod operator;
mod pillar;
mod restart;
mod status;
mod symbols;
mod targets;
mod thread;
pub mod trace;
mod unsupported;
mod workers;

pub use agent::{Agent, Running, Status};
pub use chainscope_ebpf::{Error as ProbeError, Finding, network::CaptureMode};
pub use check::{require_supported, self_check};
pub use config::{ClusterConfig, Config, ContainerLogs, NodeConfig, NodeLogs, Store, TargetLimits, Watch};
pub use delivery::uplink::{Link, Remote, Uplink};
pub use delivery::{Dropped, StreamStatus};
pub use error::Error;
pub use metrics::Monitor;
pub use unsupported::Unsupported;

/// Parsers that are not public, for the fuzz targets.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::{delivery::spool::fuzzing as spool, network::fuzzing::read_journal, symbols::fuzzing as symbols};
}
