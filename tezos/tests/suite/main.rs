//! Integration tests with the vectors (see `vectors/README.md`) and with random data.
#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]
mod bodies;
mod carthagenet;
mod common;
mod crypto;
mod forged;
mod losses;
mod sessions;
