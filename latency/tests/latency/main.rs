//! Tests of the crate.
#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]

mod browser;
mod database;
mod export;
mod histogram;
mod report;
mod runs;
mod sample;
