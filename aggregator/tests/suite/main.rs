//! The aggregator over real sockets and a real database.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod api;
mod browser;
mod conditional;
mod decoding;
mod eviction;
mod explorer;
mod explorer_proxy;
mod filters;
mod gzip;
mod ingest;
mod latency;
mod log_pattern;
mod login;
mod logs;
mod memory;
mod messages;
mod openapi;
mod operation;
mod problems;
#[cfg(feature = "kubernetes")]
mod reviews;
mod schemathesis;
mod stream;
mod trace;
mod trust;
mod wire;
