//! Tests apart from the suite: one sets the global subscriber, the others need root to mount a file system.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "../common/mod.rs"]
mod common;

mod audit_log;
mod disk;
