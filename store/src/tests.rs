//! Tests of the whole crate on real databases. The property test against a naive model is in `tests/model.rs`.

mod bounds;
mod compaction;
mod crash;
mod disk;
mod durability;
mod kinds;
mod life;
mod logs;
mod memory;
mod restarts;
mod streams;
mod support;
mod syncs;
