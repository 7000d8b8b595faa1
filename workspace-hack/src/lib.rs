//! No code: only the features of dependencies, in `Cargo.toml`.
