//! Tests on the vectors and on random data. See `vectors/README.md`.
mod carthagenet;
mod common;
