//! Tests on the vectors and on random data. See `vectors/README.md`.
#![allow(clippy::unwrap_used, reason = "tests panic where they fail")]
mod bodies;
mod carthagenet;
mod common;
mod crypto;
mod losses;
mod sessions;
