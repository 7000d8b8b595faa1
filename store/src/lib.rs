//! Stores what agents record: messages, chunks, connections, losses, accounts, snapshots of memory, of many nodes, in one
//! database.
//!
//! ```text
//!  append ──▶ staged batch ──sync──▶ engine (RocksDB)          one batch: rows, chunks, postings, zones,
//!  (writer)   rows, ids, marks        log synced, then visible  segments, ids, totals, lane marks
//!
//!  messages ──▶ view + snapshot ──▶ segments ──▶ blocks of 1,024 ids: postings AND-ed, zones ──▶ rows
//!
//!  evict ──▶ view without the oldest segments ──▶ one range delete a table ──▶ files given back after the last reader
//! ```
//!
//! - A lane (agent, epoch, node) is a dense sequence of records. Its mark is in the same batch as its rows, so that a
//!   resend is recognised whatever crashed.
//! - Messages of a node have dense ids from 0, given in arrival order, never used again.
//! - What can be read is durable. A batch reaches the engine only with its log synced.
//! - A node's facts lie in *segments*, and a segment holds everything that is needed to read it: a message's chunks are
//!   in its own segment, and a segment begins with a summary of each live connection. So the oldest can be dropped whole.
//!
//! The layout on disk is drawn in `keys.rs`, the crash rules in `writer.rs`, what readers see in `view.rs`. Nothing here
//! knows HTTP, gRPC or any protocol; calls block.

#[cfg(feature = "rocksdb")]
mod backup;
mod ballast;
mod block;
#[cfg(feature = "rocksdb")]
mod disk;
mod engine;
mod entries;
mod error;
mod evict;
mod facts;
mod fold;
mod index;
mod keys;
mod load;
mod memory;
mod meta;
mod node;
mod options;
mod posting;
mod query;
mod store;
#[cfg(test)]
mod tests;
mod verify;
mod view;
mod watch;
mod writer;

pub use engine::Memory;
pub use error::Error;
pub use evict::Evicted;
pub use facts::{Account, ChunkQuery, ConnectionQuery, FactQuery};
pub use fold::Connection;
pub use memory::SnapshotLimits;
pub use meta::{MemorySnapshot, Totals};
pub use options::{Retention, StoreOptions};
pub use query::{Budget, MessageQuery, Order};
pub use store::{Disk, NodeInfo, Store};
pub use verify::Report;
pub use watch::Subscription;
pub use writer::LONGEST_NODE;
