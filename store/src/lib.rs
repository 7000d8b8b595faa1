//! Stores what agents record: messages, chunks, connections, losses, accounts, log messages, events of tracepoints,
//! latency of functions, snapshots of memory, of many nodes, in one database.
//!
//! ```text
//!  append ──▶ staged batch ──sync──▶ engine                    one batch: rows, chunks, postings, zones,
//!  (writer)   rows, ids, marks        log synced, then visible  segments, ids, totals, high-water marks
//!
//!  query ──▶ view + snapshot ──▶ segments ──▶ blocks of 1,024 ids: postings AND-ed, zones ──▶ rows
//!
//!                                      ╰─ text/: full-text index of a segment, follows the rows, narrows text queries
//!
//!  evict ──▶ view without the oldest segments ──▶ one range delete ──▶ files deleted after the last reader
//! ```
//!
//! - A stream (agent, epoch, node) is a dense sequence of records. Its high-water mark is in the same batch as its rows, so
//!   that a resend is recognised whatever crashed.
//! - A kind of fact is declared (`kind.rs`, `schema.rs`). Ids are dense from 0 for each node and kind, given in order of
//!   arrival, never used again.
//! - A record of a file that its agent reads again is recognised by its position, whatever became of the stream.
//! - What can be read is durable. A batch is published only when its log is synced.
//! - A node's facts lie in *segments*, and a segment holds everything that is needed to read it: a message's chunks are
//!   in its own segment, and a segment begins with a summary of each live connection. So the oldest can be evicted whole.
//!
//! Shared by all pillars: the engine (`engine`), the layout on disk (`keys.rs`, drawn there), the writing side
//! (`writer.rs`, `node.rs`, `streams.rs`, `positions.rs`, `block.rs`, `load.rs`), eviction (`evict.rs`), what readers see
//! (`view.rs`), queries (`query.rs`, `search.rs`, `entries.rs`, `rows.rs`), full-text search (`text`), and
//! maintenance (`offline.rs`, `backup.rs`, `verify.rs`). Of a pillar:
//! `network`, `memory`, `logs`, `trace`, `latency`. Nothing here knows HTTP, gRPC or any protocol; calls block.

// Only linked: it overrides `malloc`.
#[cfg(feature = "rocksdb")]
use tikv_jemalloc_sys as _;

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
mod keys;
mod kind;
mod latency;
mod load;
mod logs;
mod memory;
mod meta;
mod network;
mod node;
#[cfg(feature = "rocksdb")]
mod offline;
mod options;
mod positions;
mod posting;
mod query;
mod report;
mod rows;
mod schema;
mod search;
mod store;
mod streams;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod verify;
mod view;
mod watch;
mod writer;

pub use engine::Memory;
pub use error::Error;
pub use evict::Evicted;
pub use latency::{LatencyQuery, TransactionQuery};
pub use logs::LogQuery;
pub use memory::SnapshotLimits;
pub use meta::{MemorySnapshot, Totals};
pub use network::{Account, ChunkQuery, Connection, ConnectionQuery, MessageQuery, StoredMessage};
#[cfg(feature = "rocksdb")]
pub use offline::Offline;
pub use options::{Retention, StoreOptions};
pub use query::{Budget, FactQuery, Order};
pub use report::Report;
pub use store::{Disk, NodeInfo, Store};
pub use text::{TextIndexState, TextQuery};
pub use trace::TraceQuery;
pub use watch::Subscription;
pub use writer::MAX_NODE_NAME;
