//! Tests of the crate with compiled programs, crafted files, and programs of the system.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed test shows the line; what is not located is shown"
)]

mod arguments;
mod contract_files;
mod documentation;
mod hostile;
mod nodes;
mod readelf;
mod support;
