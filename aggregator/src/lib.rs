//! Ingests records from agents, stores them, and serves them over HTTP.
//!
//! ```text
//! agents ══ gRPC or channels ══▶ ingest ─▶ writer, syncer ─▶ store (RocksDB)
//!                                                             │
//! people, dashboards, TezEdge Explorer ◀── http ◀─── query pool
//! ```
//!
//! [`Aggregator::start`] wires the parts. [`ingest`] receives records; `http` serves the API, whose description is committed
//! under `openapi/`; `network` and `memory` are what the pillars do beside HTTP. Messages are decoded at read time, from the
//! plain bytes of their chunks. The same code serves a single host and a cluster.

#![forbid(unsafe_code)]

pub mod access;
mod aggregator;
mod catalog;
mod clock;
mod config;
mod error;
pub mod explorer_proxy;
mod http;
pub mod ingest;
mod json;
mod limits;
mod memory;
mod metrics;
mod network;
mod nodes;
mod periodic;
mod pool;
mod retention;

pub use aggregator::{Aggregator, Running};
pub use catalog::CatalogConfig;
pub use config::Config;
pub use error::Error;
pub use limits::Limits;
pub use nodes::{NodeConfig, SnapshotPolicy};

/// The OpenAPI documents, generated from the handlers: the whole API, and the parts that the original had: network recorder
/// and memory profiler. What is served is the committed copy of these; a test compares them.
#[must_use]
pub fn openapi() -> [String; 3] {
    http::openapi::generate()
}
