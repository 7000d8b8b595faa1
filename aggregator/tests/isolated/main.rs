//! Tests that must not share a process: a global subscriber, memory, file systems that are full or fail.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "../common/mod.rs"]
mod common;

mod audit_log;
mod disk;
#[cfg(all(feature = "kubernetes", feature = "rocksdb"))]
mod failure;
mod slow_readers;
