//! Takes records from agents, stores them, and answers questions about them over HTTP.
//!
//! ```text
//! agents ══ gRPC or channels ══▶ ingest ─▶ writer thread ─▶ store (RocksDB)
//!                                                            │
//! people, dashboards, TezEdge Explorer ◀── http ◀── query pool
//! ```
//!
//! [`Aggregator::start`] puts it together. [`ingest`] is the way in; the modules below `http` are the way out, and the API's
//! description is committed under `openapi/`. Messages are decoded late, from the plain bytes of their chunks, when they
//! are asked for. Nothing here knows where records come from: the same code serves one machine and a cluster.

#![forbid(unsafe_code)]

pub mod access;
mod aggregator;
mod catalog;
mod clock;
mod config;
mod decode;
mod error;
pub mod explorer_proxy;
mod http;
pub mod ingest;
mod limits;
mod memory;
mod metrics;
mod nodes;
mod pool;
mod regularly;
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
