//! Tests on the vectors and on random data. See `vectors/README.md`.
mod bodies;
mod carthagenet;
mod common;
mod crypto;
mod losses;
mod sessions;
