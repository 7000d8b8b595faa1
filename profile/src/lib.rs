//! Which code holds a process's memory: states of agents merged, and what people read of them.
//!
//! ```text
//! MemoryState ─▶ Profile ─▶ Data          one process: dictionary, call tree, pages a node; a keyframe or a delta in parts
//! (agents)         │
//!                  ├─▶ encode ─▶ MemoryState     a keyframe again: what is kept as a snapshot
//!                  ▼
//! Data, Data … ─▶ Stacks ─┬─▶ Tree ─┬─▶ (a JSON tree, made by whoever serves it)
//! of now and then         │         └─▶ flame graph
//!                         └─▶ pprof
//! ```
//!
//! [`Profile`] takes what an agent sends and refuses what contradicts itself. [`Stacks`] is one call tree of any number of
//! processes, now and at an earlier moment, in kibibytes. [`Tree`] is what of it is worth showing: from the innermost
//! frame outwards or the other way round, above a threshold. Nothing here does I/O, and nothing recurses: a stack may be
//! as deep as it likes.

#![forbid(unsafe_code)]

mod data;
mod encode;
mod fault;
mod flame;
mod frame;
mod kind;
mod merge;
mod pprof;
mod stacks;
mod tree;
mod walk;

pub use data::Data;
pub use encode::{PART_BYTES, encode};
pub use fault::Fault;
pub use flame::{Flame, flame_graph};
pub use frame::{Category, Frame};
pub use kind::{Kind, Kinds};
pub use merge::{Limits, Profile, Taken};
pub use pprof::pprof;
pub use stacks::{Rest, Stacks};
pub use tree::{Label, Measure, Node, Shape, TooLarge, Tree};
