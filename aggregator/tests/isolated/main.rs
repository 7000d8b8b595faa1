//! Tests that must not share a process: a global subscriber, a full disk, memory.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "../common/mod.rs"]
mod common;

mod audit_log;
mod disk;
mod slow_readers;
