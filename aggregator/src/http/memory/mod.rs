//! `/v1`: which code holds a node's memory.
//!
//! `ask` reads parameters and finds the processes that are meant, now or in a snapshot; the rest are answers made of them.
//! All of them are made on threads of the query pool, from copies that share what the agents told: intake goes on.

mod ask;
mod flamegraph;
mod pprof;
mod scrape;
mod snapshots;
mod targets;
mod text;
mod tree;

/// What documents need beside the handlers themselves.
pub(super) use self::{
    flamegraph::__path_flamegraph,
    pprof::__path_pprof,
    snapshots::__path_snapshots,
    targets::{__path_pid, __path_targets},
    tree::{__path_tree, FrameView, ShortReport, TreeView},
};
pub(super) use self::{
    flamegraph::flamegraph,
    pprof::pprof,
    scrape::scrape,
    snapshots::snapshots,
    targets::{pid, targets},
    tree::tree,
};
