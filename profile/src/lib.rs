//! Memory profiles: which code holds the memory of a process. Merges the states sent by agents and renders them as call
//! trees, flame graphs and pprof files.
//!
//! ```text
//! MemoryState ─▶ Profile ─▶ ProfileData   one process: dictionary, call tree, pages of its stacks; a keyframe or a delta in parts
//! (agents)         │
//!                  └─▶ encode ─▶ MemoryState     a keyframe, stored as a snapshot
//!
//! ProfileData … ─▶ Stacks ─┬─▶ Tree ─┬─▶ (JSON, in the HTTP layer)
//! of one or two times      │         └─▶ flame graph
//!                          └─▶ pprof
//! ```
//!
//! [`Profile`] merges the states of an agent and rejects inconsistent ones. [`Stacks`] is one call tree of any number
//! of processes, at one time or at two times to compare, in kibibytes. [`Tree`] is the part of it above a threshold,
//! from the innermost frame outwards or the reverse. The crate does no I/O, and no code recurses: the depth of stacks
//! is unlimited.

#![forbid(unsafe_code)]

mod data;
mod encode;
mod error;
mod flame;
mod frame;
mod kind;
mod merge;
mod pprof;
mod samples;
mod stacks;
mod tree;

pub use data::ProfileData;
pub use encode::{PART_BYTES, encode};
pub use error::MergeError;
pub use flame::{FlameGraphOptions, flame_graph};
pub use frame::{Category, Frame};
pub use kind::{Kind, Kinds};
pub use merge::{Limits, MergeOutcome, Profile, state_bytes};
pub use pprof::pprof;
pub use stacks::{NonStackMemory, Stacks};
pub use tree::{Label, Measure, Node, Tree, TreeError, TreeOptions};
