//! Delivery of records and memory states to an aggregator.
//!
//! ```text
//!   pillars ──▶ RecordStreams ──▶ MemoryQueue ─────────────────────────────▶ uplink ──▶ aggregator
//!                                      └──▶ spool writer ──▶ Spool (disk) ──┘
//! ```
//!
//! A stream of records is (agent, epoch, node); its records have a dense sequence. [`stream`] has the types that both
//! buffers share and the trait [`stream::StreamBuffer`], which [`queue`] implements in memory and [`spool`] on disk.
//! [`RecordStreams`] connects the two, and the uplink sends what the last of them holds.

mod batch;
mod buffers;
pub(crate) mod queue;
pub(crate) mod spool;
mod spool_writer;
pub(crate) mod stream;
mod streams;
pub(crate) mod uplink;

pub use stream::{Dropped, StreamStatus};
pub(crate) use streams::RecordStreams;
